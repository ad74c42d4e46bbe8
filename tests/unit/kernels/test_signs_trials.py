"""Whether Triton's kernels can be used is tried out once, unless the trial says nothing about that."""

import sys
from types import ModuleType

import pytest
import torch

from tensile_db.kernels import signs_on_gpu

OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."),
    RuntimeError("Triton Error [CUDA]: out of memory"),
)


class Trials(list):
    """The names of the trials that were made on a GPU that is played."""

    def __init__(self):
        super().__init__()
        #: What the next ones raise.
        self.errors = []
        self.is_capturing = False
        self.now_s = 0.0

    def trial(self, name):
        """Return one, as signs_triton has it."""

        def run(device, dtypes):
            self.append(name)
            assert (device.type, tuple(dtypes)) == ("cuda", signs_on_gpu.DTYPES)
            if self.errors and (error := self.errors.pop(0)) is not None:
                raise error

        return run


@pytest.fixture
def trials(monkeypatch):
    trials = Trials()
    module = ModuleType("tensile_db.kernels.signs_triton")
    module.try_out, module.try_out_dropout = trials.trial("masks"), trials.trial("dropout")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("tensile_db.kernels.signs_triton", module, raising=False)
    monkeypatch.setattr(signs_on_gpu, "_known", {})
    monkeypatch.setattr(signs_on_gpu, "_again_at", {})
    monkeypatch.setattr(signs_on_gpu.time, "monotonic", lambda: trials.now_s)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: trials.is_capturing)
    return trials


def test_kernels_that_work_are_tried_out_once(trials):
    assert [signs_on_gpu._has_kernels() for _ in range(3)] == [True] * 3
    assert [signs_on_gpu._has_dropout_kernels() for _ in range(3)] == [True] * 3
    assert trials == ["masks", "dropout"]


def test_those_that_do_not_are_not_tried_again_and_dropouts_not_without_the_others(trials):
    trials.errors = [RuntimeError("Failed to find C compiler")]
    assert [signs_on_gpu._has_dropout_kernels() for _ in range(3)] == [False] * 3
    assert trials == ["masks"]


def test_the_others_do_not_need_dropouts(trials):
    trials.errors = [None, RuntimeError("its kernels compute other gradients of dropout in torch.float32")]
    assert [signs_on_gpu._has_dropout_kernels() for _ in range(3)] == [False] * 3
    assert signs_on_gpu._has_kernels()
    assert trials == ["masks", "dropout"]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["PyTorch's", "Triton's"])
def test_a_full_device_says_nothing_about_them_and_is_asked_again_a_minute_later(trials, error):
    trials.errors = [error]
    assert not signs_on_gpu._has_kernels()
    trials.now_s = 59
    assert not signs_on_gpu._has_kernels()
    assert trials == ["masks"]
    trials.now_s = 61
    assert signs_on_gpu._has_kernels()
    assert trials == ["masks", "masks"]


def test_no_trial_is_made_while_a_graph_is_captured(trials):
    trials.is_capturing = True
    assert not signs_on_gpu._has_kernels()
    assert trials == []
    trials.is_capturing = False
    assert signs_on_gpu._has_kernels()
    trials.is_capturing = True
    # What is known is known there, too.
    assert signs_on_gpu._has_kernels()
