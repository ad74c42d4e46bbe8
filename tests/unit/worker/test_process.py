"""What a worker does to its process before it begins."""

import signal
import sys
import threading
from types import SimpleNamespace

import torch

from tensile_db.worker.service import prepare_process


def test_the_first_to_trace_is_the_thread_that_prepares(monkeypatch):
    seen = []
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "setswitchinterval", lambda interval: None)
    # Stands for all that entering does, which is done where there is a GPU, too.
    enter = torch._C._unset_dispatch_mode

    def noting(key):
        seen.append(threading.current_thread())
        return enter(key)

    monkeypatch.setattr(torch._C, "_unset_dispatch_mode", noting)
    prepare_process(SimpleNamespace(stop=lambda: None))
    assert seen[:1] == [threading.current_thread()]
