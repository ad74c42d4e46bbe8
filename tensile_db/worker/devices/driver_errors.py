"""What a device's driver says with the errors that PyTorch hands on from it.

Most errors of a call concern that call alone, and the device goes on; which of them it is tells a number.

Source: CUDA Runtime API, cudaError_t (HIP has the same numbers); pytorch torch/csrc/Exceptions.cpp, which
sets `error_code`.
"""

import torch

#: cudaErrorMemoryAllocation: of the device or of the host, for tensors, pinned pieces, code or a graph.
_NO_MEMORY = 2
#: cudaErrorStreamCaptureUnsupported to cudaErrorStreamCaptureWrongThread: a capture ends by them, no more.
_CAPTURE = range(900, 909)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether there was no memory for what a call wanted.

    PyTorch's allocator of device memory has an error of its own; everything else that finds no memory, e.g.
    pinning, or loading a kernel when it is first launched, has only the driver's number.
    """
    return isinstance(error, torch.OutOfMemoryError) or _code(error) == _NO_MEMORY


def is_of_its_call(error: BaseException) -> bool:
    """Tell whether an error says by itself that the device goes on; one that does not may do so, too."""
    return is_out_of_memory(error) or _code(error) in _CAPTURE


def _code(error: BaseException) -> int | None:
    """Return the driver's number; None where there is none, or PyTorch keeps it to itself."""
    return getattr(error, "error_code", None) if isinstance(error, torch.AcceleratorError) else None
