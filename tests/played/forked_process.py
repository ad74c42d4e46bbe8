"""Worker processes that need not import PyTorch: copies of one that has.

To import it takes a worker longer than all that most tests have it do.
"""

import multiprocessing
import os
from multiprocessing.connection import Connection

_CONTEXT = multiprocessing.get_context("forkserver")


def start_forked():
    """Start a worker's process, as a Supervisor takes one; the first in a test's process takes seconds."""
    _CONTEXT.set_forkserver_preload(["tensile_db.worker.service"])
    return ForkedProcess()


class ForkedProcess:
    """What a supervisor needs of `subprocess.Popen`."""

    def __init__(self):
        theirs, ours = os.pipe()
        # This process's standard error as it is now, maybe captured: the server's is what it was then.
        told_here = Connection(os.dup(2), readable=False)
        self._process = _CONTEXT.Process(target=_become_worker, args=(Connection(theirs), told_here))
        self._process.start()
        told_here.close()
        self.pid = self._process.pid
        self.stdin = os.fdopen(ours, "wb")

    def send_signal(self, number):
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self):
        """Return the exit status, negative of a signal; None while it runs."""
        return self._process.exitcode

    def wait(self):
        """Wait for the end; return the exit status."""
        self._process.join()
        return self._process.exitcode


def _become_worker(pipe, told):
    # As a process of its own: Ctrl-C is for the tests.
    os.setsid()
    os.dup2(pipe.fileno(), 0)
    os.dup2(told.fileno(), 2)
    pipe.close()
    told.close()
    from tensile_db.worker.supervisor import main

    main()
