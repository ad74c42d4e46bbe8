"""How long tests wait for what must come."""

import time

#: Long, for machines that are slow and busy: only a test that fails waits until then.
PATIENCE_S = 240


def wait_until(is_so):
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
