"""How long tests wait for what must come."""

import time

#: Long, for machines that are slow and busy: only a test that fails waits until then.
PATIENCE_S = 240


def wait_until(holds, told=None, *, timeout_s=PATIENCE_S):
    """Wait until `holds` returns something true; return that.

    told: returns what is known where it never does.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, told() if told else "what must come does not come"
        time.sleep(0.02)
    return found
