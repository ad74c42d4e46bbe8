"""Errors as PyTorch raises them where a device's driver refuses a call, and where a library does.

Each is made anew: one that is kept would keep the tensors of the frames that it has passed.
"""

from functools import partial

import torch


def driver_error(said, code=None):
    """Return one with the driver's number; None: PyTorch keeps it to itself."""
    error = torch.AcceleratorError(f"CUDA error: {said}")
    if code is not None:
        error.error_code = code
    return error


no_memory = partial(driver_error, "out of memory", 2)
#: Of a device that is lost every call says the same.
lost = partial(driver_error, "an illegal memory access was encountered", 700)
capturing = partial(driver_error, "operation not permitted when stream is capturing", 900)
#: A call's own mistake.
invalid = partial(driver_error, "invalid argument", 1)
without_number = partial(driver_error, "something")

#: What shows first may be a library's.
cublas = partial(RuntimeError, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`")
cudnn = partial(RuntimeError, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
triton = partial(RuntimeError, "Triton Error [CUDA]: an illegal memory access was encountered")
driver = partial(RuntimeError, "CUDA driver error: unspecified launch failure")
