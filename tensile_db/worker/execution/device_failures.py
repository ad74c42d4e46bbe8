"""Tells a device's failures, which come at any call after the one that caused them, from a job's own.

A kernel that runs later fails later: the error surfaces wherever the device is spoken to next, in whichever
job's thread.  So no op is named.

Source: pytorch c10/core/Device error types: torch.OutOfMemoryError, torch.AcceleratorError.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tensile_db.errors import DeviceLost, DriverOutOfMemory


def is_the_devices(error: Exception) -> bool:
    """Tell whether an error is of the device, not of an operator's arguments."""
    return isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError)


@contextmanager
def device_failures() -> Iterator[None]:
    """Raise DriverOutOfMemory and DeviceLost for what PyTorch raises when the device fails."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DriverOutOfMemory(_first_lines(error)) from error
    except torch.AcceleratorError as error:
        raise DeviceLost(_first_lines(error)) from error


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
