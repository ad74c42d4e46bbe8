"""Opens a GPU for a worker: finds it, sets how it computes, measures it, bounds its memory.

Source: pytorch docs/source/notes/{cuda,randomness,numerical_accuracy}.rst,
aten/src/ATen/cuda/CublasHandlePool.cpp; cuBLAS documentation, cublasSetWorkspace.
"""

import logging
import os
from dataclasses import replace

import torch
from torch import _C

from tensile_db.errors import InvalidRequest, NoSuchDevice
from tensile_db.worker.config import MAX_JOBS
from tensile_db.worker.devices.asynchronous import AsynchronousDevice
from tensile_db.worker.devices.cuda.runtime import CudaRuntime, allow_tf32
from tensile_db.worker.devices.names import cuda_index
from tensile_db.worker.devices.steering_trial import try_steering
from tensile_db.worker.devices.stream_rates import measure, measure_mark_ns

log = logging.getLogger(__name__)

#: Where PyTorch's users say how its allocator works; the former name counts for GPUs of other makers, too.
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

#: Which workspaces cuBLAS has, and whether PyTorch keeps them or makes one for each call.
_WORKSPACE_CONFIG, _WORKSPACE_CACHE = "CUBLAS_WORKSPACE_CONFIG", "TORCH_CUBLAS_WORKSPACE_CACHE"
#: Eight of 4096 KiB.
_WORKSPACES = ":4096:8"

#: Of the GPU's memory, what is left to what no account knows of: code loaded on first use, handles of cuBLAS
#: and cuDNN, what kernels hold unforeseen, and the allocator's rounding.
_LIBRARIES_NBYTES = 2**29
#: And for each thread that computes two workspaces of 8 times 4096 KiB: one that cuBLAS makes with a handle,
#: and the one that PyTorch keeps to be used in its place.
_THREAD_NBYTES = 2 * 2**25
#: Threads beside those of jobs: the one that opens the device, and the one that prepares batch sizes aside.
_OTHER_THREADS = 2
#: Of the GPU's memory again, no more than this part: small cards train, too.
_RESERVE_PART = 10


def require_present(name: str) -> None:
    """Raise NoSuchDevice, saying what is missing, where PyTorch sees no such GPU; takes none of its memory.

    Raises UnknownName and InvalidRequest for a name that is no GPU's.
    """
    index = cuda_index(name)
    if torch.version.cuda is None:
        raise NoSuchDevice(
            f"PyTorch {torch.__version__} was built without CUDA",
            hint="Install a build with CUDA (https://pytorch.org), or use --device cpu.",
        )
    count = torch.cuda.device_count()
    if count == 0:
        raise NoSuchDevice(
            "PyTorch finds no GPU here",
            hint="Does nvidia-smi list one? CUDA_VISIBLE_DEVICES may hide it, and the driver must be new"
            f" enough for CUDA {torch.version.cuda}. Else use --device cpu.",
        )
    if index >= count:
        raise NoSuchDevice(
            f"there is no cuda:{index}: PyTorch sees {count} GPU" + ("s" if count > 1 else ""),
            hint="The first one is cuda:0.",
        )


def require(name: str) -> None:
    """Raise as `require_present` does, and NoSuchDevice where the GPU does not compute."""
    require_present(name)
    index = cuda_index(name)
    try:
        torch.zeros(1, device=torch.device("cuda", index)).add_(1).item()
    except Exception as error:
        raise NoSuchDevice(
            f"cuda:{index} is there and does not compute: {_first_line(error)}",
            hint="Is this PyTorch built for such a GPU, and is the GPU free? nvidia-smi tells.",
        ) from error


def let_segments_grow(name: str) -> None:
    """Have PyTorch's allocator keep each stream's memory in one range of addresses, which grows by pages.

    Else it asks the driver for pieces, which fit later tensors badly: with plans that leave no memory unused,
    it would hold a third more than they need.  Pages go back to the driver singly.  All stays as
    it was where the environment says what is wanted, or driver or PyTorch cannot.
    """
    if any("expandable_segments" in os.environ.get(each, "") for each in _ALLOCATOR_SETTINGS):
        return
    # PyTorch's public names for them are older, and deprecated.
    read = getattr(_C, "_accelerator_getAllocatorSettings", None)
    change = getattr(_C, "_accelerator_setAllocatorSettings", None)
    if change is None:
        return
    # What is not said once more goes back to PyTorch's own.
    others = "" if read is None else read()
    before = f"{others}," if others else ""
    change(f"{before}expandable_segments:True")
    try:
        # Of memory that is there already nothing would be mapped.
        torch.cuda.empty_cache()
        torch.zeros(1, device=torch.device("cuda", cuda_index(name)))
    except Exception as error:  # noqa: BLE001  # whatever it is, without it the GPU may work
        log.warning("segments that grow do not work here, memory is kept in pieces: %s", _first_line(error))
        change(f"{before}expandable_segments:False")


def set_precision(*, deterministic: bool = True) -> None:
    """Set, for the whole process, how kernels compute: float32 in full, until a job wants it otherwise.

    deterministic: the same numbers in every run and beside any neighbours, where PyTorch has such kernels;
    where it has none it warns.  Must come before the first matrix product.
    """
    # cuBLAS: with one fixed workspace for each handle, results do not depend on what else runs.
    os.environ.setdefault(_WORKSPACE_CONFIG, _WORKSPACES)
    # Newer versions of PyTorch, 2.15 among them, would else allocate all of it for each product: 32 MiB, for
    # which every plan would need room at each of them.
    os.environ.setdefault(_WORKSPACE_CACHE, "1")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = deterministic
    allow_tf32(False)
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    # It would have every fresh tensor written once more, which nothing here reads.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # a property


def keeps_blas_workspaces() -> bool:
    """Whether cuBLAS's workspaces are kept from one product to the next; else they are a product's own.

    Versions of PyTorch that have no such switch keep them, whatever it says.
    """
    return os.environ.get(_WORKSPACE_CACHE) == "1"


def blas_workspaces() -> str:
    """Return how large they are, in cuBLAS's own notation."""
    return os.environ.get(_WORKSPACE_CONFIG, "default")


def reserve_nbytes(total_nbytes: int, *, jobs: int) -> int:
    """Return what is left to libraries of a GPU's memory where so many jobs may compute by turns."""
    return min(_LIBRARIES_NBYTES + (jobs + _OTHER_THREADS) * _THREAD_NBYTES, total_nbytes // _RESERVE_PART)


def open_cuda(
    name: str,
    *,
    memory_nbytes: int | None,
    host_nbytes: int,
    jobs: int = MAX_JOBS,
    deterministic: bool = True,
    replay: bool = False,
) -> AsynchronousDevice:
    """Open the GPU called cuda:N; takes seconds.

    memory_nbytes: what jobs may hold; None: what is free, less a reserve.
    jobs: that may be there at once, each with a thread.
    replay: take settled iterations down as CUDA graphs.
    Raises UnknownName, InvalidRequest and NoSuchDevice.
    """
    require_present(name)
    # Before the first tensor, whose memory stays as it was taken.
    let_segments_grow(name)
    require(name)
    index = cuda_index(name)
    set_precision(deterministic=deterministic)
    runtime = CudaRuntime(index)
    spec = measure(runtime, name=f"cuda:{index}", memory_nbytes=0)
    steers = replay and try_steering(runtime)
    runtime.trim()
    free_nbytes, total_nbytes = runtime.memory_nbytes()
    reserved_nbytes = reserve_nbytes(total_nbytes, jobs=jobs)
    usable_nbytes = max(0, free_nbytes - reserved_nbytes)
    if memory_nbytes is not None and memory_nbytes > usable_nbytes:
        raise InvalidRequest(
            f"{name} has {usable_nbytes} bytes for jobs: {free_nbytes} of {total_nbytes} are free, of which"
            f" {reserved_nbytes} are for libraries",
            hint="Give less --memory, or stop what else uses the GPU.",
        )
    granted_nbytes = usable_nbytes if memory_nbytes is None else memory_nbytes
    # Beyond what accounts forbid, the allocator itself refuses: nothing else of the GPU is ever taken.
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, (granted_nbytes + reserved_nbytes) / total_nbytes), runtime.torch_device
    )
    spec = replace(spec, memory_nbytes=granted_nbytes, replays=replay, steers=steers)
    mark_ns = measure_mark_ns(runtime)
    return AsynchronousDevice(runtime, spec, host_nbytes=host_nbytes, mark_ns=mark_ns)


def model_name(device: torch.device | int) -> str:
    """Return the GPU's name as its maker writes it."""
    return torch.cuda.get_device_name(device)


def library_versions() -> str:
    """Return the versions of the libraries that kernels come from, which need not be PyTorch's own."""
    cudnn: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return f"CUDA {torch.version.cuda}, cuDNN {cudnn}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
