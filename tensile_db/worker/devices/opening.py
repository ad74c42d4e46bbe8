"""Opens the device that a worker was given by name."""

from tensile_db.errors import InvalidRequest
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.devices.cores import NOMINAL, calibrate
from tensile_db.worker.devices.cpu import DEFAULT_LINK_BYTES_PER_S, CpuDevice
from tensile_db.worker.devices.cuda.opening import open_cuda
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.limits import require_threads
from tensile_db.worker.devices.names import is_cuda, require_device_name
from tensile_db.worker.host import available_memory_nbytes, host_memory_nbytes

#: Of the memory that is free, what a worker takes that was not told how much: the rest is for the host's
#: side of swaps, the rows and everybody else.
_SHARE_OF_FREE = 2

#: Of the host's memory, what a GPU's swaps may take that were not told how much.
_SHARE_OF_HOST = 2


def open_device(config: WorkerConfig) -> Device:
    """Open the device.  Raises UnknownName, InvalidRequest, NoSuchDevice."""
    require_device_name(config.device)
    require_threads(config.threads)
    if is_cuda(config.device):
        return open_cuda(
            config.device,
            memory_nbytes=config.memory_nbytes,
            host_nbytes=config.host_memory_nbytes or host_memory_nbytes() // _SHARE_OF_HOST,
            jobs=config.max_jobs,
            replay=config.replay,
        )
    memory_nbytes = config.memory_nbytes or available_memory_nbytes() // _SHARE_OF_FREE
    if memory_nbytes <= 0:
        raise InvalidRequest(
            f"the device's memory cannot be {memory_nbytes} bytes", hint="Give it as --memory, e.g. 2GiB."
        )
    link_bytes_per_s = config.link_bytes_per_s or DEFAULT_LINK_BYTES_PER_S
    return CpuDevice(
        memory_nbytes=memory_nbytes,
        threads=config.kernel_threads,
        d2h_bytes_per_s=link_bytes_per_s,
        h2d_bytes_per_s=link_bytes_per_s,
        rates=calibrate(config.kernel_threads) if config.calibrate else NOMINAL,
    )
