"""Tells whether what PyTorch failed with means that memory was short.

Its allocator refuses by an error of its own.  Libraries and the driver have others, and cuDNN's says only
that none of its kernels would do, when the workspace of each was refused.

Source: pytorch aten/src/ATen/native/cudnn/Conv_v8.cpp, c10/cuda/CUDAException.cpp.
"""

import torch

_SAID = ("unable to find an engine", "CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED")
#: cudaErrorMemoryAllocation.
_NO_MEMORY = 2


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory was short, or so much as may mean it."""
    match error:
        case torch.OutOfMemoryError():
            return True
        case torch.AcceleratorError():
            return getattr(error, "error_code", None) == _NO_MEMORY
        case RuntimeError():
            return any(words in str(error) for words in _SAID)
    return False
