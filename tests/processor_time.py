"""What threads of the test's process have cost."""

import threading
import time


def processor_time_s():
    """Return the processor time that each of a worker's threads has used, in seconds by its name."""
    return {
        thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.name.startswith("tensile-")
    }
