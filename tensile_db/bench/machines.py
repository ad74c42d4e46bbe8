"""Which devices a benchmark can speak of: simulated machines, and this machine's own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tensile_db.bench.here import opened
from tensile_db.capture.kernel_threads import SIMULATED_THREADS
from tensile_db.errors import InvalidRequest
from tensile_db.machine_files import find_machine
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.names import CPU, cuda_index, is_cuda

#: Benchmarks that have one of their own for the cpu device, in the checkout's `bench/`.
_ON_CPU = ("search", "serving", "sharing")


def is_here(name: str) -> bool:
    """Tell whether the name is meant for a device of this machine, not for one that is simulated."""
    return name == CPU or is_cuda(name)


def spec_of(name: str) -> DeviceSpec:
    """Return the machine of sim:NAME or sim:FILE.json; of cpu and cuda:N what is measured when it is opened.

    Raises UnknownName, InvalidRequest, NoSuchDevice.
    """
    with on(name) as (spec, _):
        return spec


@contextmanager
def on(name: str) -> Iterator[tuple[DeviceSpec, Device | None]]:
    """Give what `spec_of` returns; beside it, of cpu and cuda:N, the device while it is open."""
    if not is_here(name):
        yield find_machine(name), None
        return
    with opened(name) as device:
        yield device.spec, device


def torch_device(name: str) -> torch.device:
    """Return for what kind of device to capture: a simulated GPU's operators are taken to be the processor's.

    Raises InvalidRequest.
    """
    return torch.device("cuda", cuda_index(name)) if is_cuda(name) else torch.device(CPU)


def kernel_threads(name: str) -> int:
    """Return for how many kernel threads to capture; for a simulated device the same on every machine."""
    return torch.get_num_threads() if is_here(name) else SIMULATED_THREADS


def simulated(name: str, bench: str) -> DeviceSpec:
    """Return the machine called sim:NAME, or described in sim:FILE.json.

    Raises UnknownName, and InvalidRequest for a device on which this benchmark does not run.
    """
    if is_here(name):
        raise InvalidRequest(
            f"bench {bench} does not run on {name}: it simulates a machine of the papers",
            hint="Name a machine to simulate, e.g. --device sim:p100"
            + (f"; python -m bench.{bench} runs jobs on the cpu device." if bench in _ON_CPU else "."),
        )
    return find_machine(name)
