"""Tells a device's failures, which come at any call after the one that caused them, from a job's own.

A kernel that runs later fails later: the error surfaces wherever the device is spoken to next, in whichever
job's thread.  It comes as whatever is made of it there: PyTorch's own error, or one that only has the text of
cuBLAS, cuDNN, Triton or the driver.  And of the same kind are the errors of a device that merely refuses a
call, for lack of memory say, and goes on.  So no error is taken at its word: the device is asked whether it
still answers.  Where it does not, no op is named.

Source: pytorch c10/cuda/CUDAException.cpp, torch/csrc/Exceptions.h: torch.OutOfMemoryError,
torch.AcceleratorError, RuntimeError.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from tensile_db.errors import DeviceLost, DriverOutOfMemory, KernelFailed, TensileError
from tensile_db.graph import Op
from tensile_db.worker.devices.driver_errors import is_out_of_memory


class Asked(Protocol):
    """A device, or a recording of one."""

    def find_loss(self) -> Exception | None:
        """Return what it answers whatever it is asked, where it is lost."""
        ...


@contextmanager
def device_failures(device: Asked) -> Iterator[None]:
    """Raise DriverOutOfMemory, DeviceLost or KernelFailed for what PyTorch raises when a device's call fails.

    Other errors pass, unless the device turns out to be lost.
    """
    try:
        yield
    except RuntimeError as error:
        failure = _devices_failure(error, device)
        if failure is None and isinstance(error, torch.AcceleratorError):
            failure = KernelFailed(f"the device refused a call: {_first_lines(error)}")
        if failure is None:
            raise
        raise failure from error


def op_failure(op: Op, error: Exception, device: Asked) -> TensileError:
    """Return what an op's error is: DriverOutOfMemory, DeviceLost, or KernelFailed, which names the op."""
    failure = _devices_failure(error, device)
    return failure or KernelFailed(f"op {op.id} ({op.target}) failed: {error}")


def loss_shown_by(error: Exception, device: Asked) -> DeviceLost | None:
    """Return that the device is lost, with what showed it first; None where it answers."""
    answer = device.find_loss()
    if answer is None:
        return None
    seen, said = _first_lines(error), _first_lines(answer)
    # Libraries say no more than that something failed.
    return DeviceLost(said if seen in said else f"{said}, first seen as: {seen}")


def _devices_failure(error: Exception, device: Asked) -> TensileError | None:
    if isinstance(error, torch.OutOfMemoryError):
        # A lost device fails PyTorch's allocator otherwise.
        return DriverOutOfMemory(_first_lines(error))
    if (loss := loss_shown_by(error, device)) is not None:
        return loss
    return DriverOutOfMemory(_first_lines(error)) if is_out_of_memory(error) else None


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
