"""Tells whether what PyTorch failed with means that memory was short.

Its allocator refuses by an error of its own.  Libraries and the driver have others, and cuDNN's says only
that none of its kernels would do, when the workspace of each was refused.

Source: pytorch aten/src/ATen/native/cudnn/Conv_v8.cpp, c10/cuda/CUDAException.cpp.
"""

from tensile_db.worker.devices import driver_errors

_SAID = ("unable to find an engine", "CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory was short, or so much as may mean it."""
    return driver_errors.is_out_of_memory(error) or (
        type(error) is RuntimeError and any(words in str(error) for words in _SAID)
    )
