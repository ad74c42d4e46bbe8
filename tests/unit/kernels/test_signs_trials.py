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


@pytest.fixture
def trials(monkeypatch):
    """Play trials on a GPU: what they raise, the next first; returns the names of those that were made."""
    raised = []
    module = ModuleType("tensile_db.kernels.signs_triton")

    def trial(name):
        def run(device, dtypes):
            made.append(name)
            assert (device.type, tuple(dtypes)) == ("cuda", signs_on_gpu.DTYPES)
            if raised and (error := raised.pop(0)) is not None:
                raise error

        return run

    module.try_out, module.try_out_dropout = trial("masks"), trial("dropout")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("tensile_db.kernels.signs_triton", module, raising=False)
    monkeypatch.setattr(signs_on_gpu, "_known", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)

    class Made(list):
        capturing = False

        def fail(self, *errors):
            raised.extend(errors)

    made = Made()
    return made


def test_kernels_that_work_are_tried_out_once(trials):
    assert [signs_on_gpu._has_kernels() for _ in range(3)] == [True] * 3
    assert [signs_on_gpu._has_dropout_kernels() for _ in range(3)] == [True] * 3
    assert trials == ["masks", "dropout"]


def test_those_that_do_not_are_not_tried_again_and_dropouts_not_without_the_others(trials):
    trials.fail(RuntimeError("Failed to find C compiler"))
    assert [signs_on_gpu._has_dropout_kernels() for _ in range(3)] == [False] * 3
    assert trials == ["masks"]


def test_the_others_do_not_need_dropouts(trials):
    trials.fail(None, RuntimeError("its kernels compute other gradients of dropout in torch.float32"))
    assert [signs_on_gpu._has_dropout_kernels() for _ in range(3)] == [False] * 3
    assert signs_on_gpu._has_kernels()
    assert trials == ["masks", "dropout"]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["PyTorch's", "Triton's"])
def test_a_full_device_says_nothing_about_them(trials, error):
    trials.fail(error)
    assert not signs_on_gpu._has_kernels()
    assert signs_on_gpu._has_kernels()
    assert trials == ["masks", "masks"]


def test_no_trial_is_made_while_a_graph_is_captured(trials):
    trials.capturing = True
    assert not signs_on_gpu._has_kernels()
    assert trials == []
    trials.capturing = False
    assert signs_on_gpu._has_kernels()
    trials.capturing = True
    # What is known is known there, too.
    assert signs_on_gpu._has_kernels()
