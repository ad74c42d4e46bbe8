"""What the process holds, looked at while its other threads stand still."""

import gc
import sys
import time

#: Longer than to look at all there is.
_LOOKING_S = 5.0


def objects_of(*types):
    """Return all objects of exactly these types.

    The list of all objects is a second owner of each, also of a tuple that another thread is just making of a
    generator, which then fails with SystemError; so no other thread may go on before it is gone.
    """
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_LOOKING_S)
    try:
        # Who waits for the interpreter already, asks for it after the former interval.
        time.sleep(2 * interval_s)
        return [thing for thing in gc.get_objects() if type(thing) in types]
    finally:
        sys.setswitchinterval(interval_s)
