"""The device of a run, as the sections use it: a GPU, or the processor for a dry run of the bench itself.

On the processor nothing is worth measuring: it only shows that every line of the bench works.
"""

import gc
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tensile_db.bench.reports.provenance import provenance
from tensile_db.capture.precision import Precision
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.devices.cuda.nvml import Nvml
from tensile_db.worker.devices.cuda.opening import (
    let_segments_grow,
    model_name,
    open_cuda,
    set_precision,
)
from tensile_db.worker.devices.cuda.runtime import allow_tf32
from tensile_db.worker.devices.device import Device
from tensile_db.worker.host import host_memory_nbytes

_PACKAGES = ("torch", "timm", "torchvision", "numpy", "scipy", "triton", "nvidia-ml-py", "cupy-cuda13x")
#: Of the host's memory, what swaps may take.
_HOST_SHARE = 0.5
#: Processes of a section that runs beside others.
_MOST_AT_ONCE = 4
_DRY_RUN_NBYTES = 4 * 2**30


class Machine:
    """One process's view of the device."""

    def __init__(self, name: str, captures: Path | None = None) -> None:
        """name: cuda:N or cpu; captures: the folder where captured steps are kept, None for none."""
        self.name = name
        self.captures = captures
        self.is_gpu = name != "cpu"

    @property
    def torch_device(self) -> torch.device:
        """Where PyTorch puts its tensors."""
        return torch.device(self.name)

    def prepare(self, *, deterministic: bool) -> None:
        """Set how kernels compute: strict float32 either way."""
        if self.is_gpu:
            set_precision(deterministic=deterministic)

    def let_segments_grow(self) -> None:
        """Keep memory as an open device does, from now on: before the first tensor."""
        if self.is_gpu:
            let_segments_grow(self.name)

    @contextmanager
    def in_precision(self, precision: Precision) -> Iterator[None]:
        """Let all of the process' kernels compute float32 in TF32 inside if it is that, else none.

        Leaves the setting as it was: an open device counts on what it has set it to.
        """
        if not self.is_gpu:
            yield
            return
        before = torch.backends.cuda.matmul.allow_tf32
        allow_tf32(precision is Precision.TF32)
        try:
            yield
        finally:
            allow_tf32(before)

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Draw from `seed` inside, and leave the generators of processor and device as they were."""
        with torch.random.fork_rng(devices=[self.torch_device.index] if self.is_gpu else []):
            torch.manual_seed(seed)
            yield

    def open(
        self, memory_nbytes: int | None = None, *, deterministic: bool = False, replay: bool = False
    ) -> Device:
        """Open the device; memory_nbytes: None for all that is free; replay: where it is a GPU."""
        if not self.is_gpu:
            return CpuDevice(memory_nbytes=memory_nbytes or _DRY_RUN_NBYTES, threads=torch.get_num_threads())
        return open_cuda(
            self.name,
            memory_nbytes=memory_nbytes,
            host_nbytes=int(_HOST_SHARE * host_memory_nbytes()),
            deterministic=deterministic,
            replay=replay,
        )

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.is_gpu:
            torch.cuda.synchronize(self.torch_device)

    @staticmethod
    def keep_imports() -> None:
        """Keep what is there now out of `clean`: all that is imported takes it a tenth of a second."""
        gc.freeze()

    def clean(self) -> None:
        """Let go of what nobody holds."""
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()

    def let_libraries_allocate(self) -> None:
        """Let cuBLAS have the workspaces that it keeps from its first products on.

        It has one for a stream and a thread, and what goes backward has a thread of its own.
        """
        if self.is_gpu:
            one = torch.ones(64, 64, device=self.torch_device, requires_grad=True)
            torch.mm(one, one).sum().backward()
            self.synchronize()

    def reserved_nbytes(self) -> int:
        """Return what PyTorch's allocator holds of the driver's now."""
        return torch.cuda.memory_reserved(self.torch_device) if self.is_gpu else 0

    def allocated_nbytes(self) -> int:
        """Return what PyTorch's allocator has handed out now."""
        return torch.cuda.memory_allocated(self.torch_device) if self.is_gpu else 0

    def begin_peak(self) -> None:
        """Measure allocator peaks from now on."""
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats(self.torch_device)

    def peaks(self) -> dict[str, int]:
        """Return what the allocator handed out and held at most since begin_peak."""
        if not self.is_gpu:
            return {"max_allocated_nbytes": 0, "max_reserved_nbytes": 0}
        return {
            "max_allocated_nbytes": torch.cuda.max_memory_allocated(self.torch_device),
            "max_reserved_nbytes": torch.cuda.max_memory_reserved(self.torch_device),
        }

    def limit(self, nbytes: int | None) -> None:
        """Have the allocator refuse more than so many bytes in all; None: nothing."""
        if self.is_gpu:
            _, total_nbytes = torch.cuda.mem_get_info(self.torch_device)
            share = 1.0 if nbytes is None else min(1.0, nbytes / total_nbytes)
            torch.cuda.set_per_process_memory_fraction(share, self.torch_device)

    def times_ns(self, work: Callable[[], object], *, warm_up: int, runs: int) -> list[int]:
        """Return the time of each run, the device's work in it included."""
        for _ in range(warm_up):
            work()
        self.synchronize()
        times = []
        for _ in range(runs):
            begin_ns = time.perf_counter_ns()
            work()
            self.synchronize()
            times.append(time.perf_counter_ns() - begin_ns)
        return times

    def pipelined_ns(self, work: Callable[[], object], *, runs: int) -> int:
        """Return the time of a run where the host runs ahead of the device."""
        self.synchronize()
        begin_ns = time.perf_counter_ns()
        for _ in range(runs):
            work()
        self.synchronize()
        return (time.perf_counter_ns() - begin_ns) // runs

    def facts(self) -> dict[str, Any]:
        """Return machine, driver, versions and command, for a results file."""
        python, *rest = sys.orig_argv
        # Its name alone: results are kept, and where an interpreter lies is its machine's own matter.
        found = provenance(shlex.join([Path(python).name, *rest]), ())
        found["versions"] = {"python": platform.python_version()} | {
            name: _version(name) for name in _PACKAGES
        }
        found["device"] = self._device_facts() if self.is_gpu else {"name": "cpu, a dry run"}
        return found

    def _device_facts(self) -> dict[str, Any]:
        properties = torch.cuda.get_device_properties(self.torch_device)
        free_nbytes, total_nbytes = torch.cuda.mem_get_info(self.torch_device)
        nvml = Nvml(f"GPU-{getattr(properties, 'uuid', 'unknown')}")
        return {
            "name": model_name(self.torch_device),
            "total_nbytes": total_nbytes,
            "free_nbytes": free_nbytes,
            "capability": list(torch.cuda.get_device_capability(self.torch_device)),
            "multiprocessors": properties.multi_processor_count,
            "driver": nvml.driver_version(),
            "nvml": nvml.missing or "works",
            "other_processes_nbytes": nvml.others_nbytes(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
            "allocator": {
                name: os.environ[name]
                for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
                if name in os.environ
            },
        }


def processes_beside_tests() -> int:
    """Return how many processes a section may have beside others; each is one with a planner of its own."""
    return max(1, min(_MOST_AT_ONCE, (os.cpu_count() or 1) // 3))


def spec_facts(device: Device) -> dict[str, Any]:
    """Return what the planner knows of the device."""
    return asdict(device.spec)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
