"""What the driver knows of a GPU beyond this process: utilization, and who holds its memory.

The package nvidia-ml-py is optional; without it nothing is known, and nothing needs it.

Source: NVML API reference, nvmlDeviceGetUtilizationRates, nvmlDeviceGetComputeRunningProcesses,
nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_t.
"""

import os
from contextlib import suppress
from importlib import import_module
from typing import Any


class Nvml:
    """The view of one GPU."""

    def __init__(self, uuid: str) -> None:
        """uuid: as nvidia-smi -L writes it; CUDA's own numbers are others where GPUs are hidden."""
        self._nvml: Any = None
        self._handle: Any = None
        #: Why nothing is known; empty where something is.
        self.missing = ""
        try:
            nvml = import_module("pynvml")
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # noqa: BLE001  # what it lacks, it says; nobody depends on it
            self.missing = f"{type(error).__name__}: {error}"
        else:
            self._nvml = nvml

    def utilization(self) -> float:
        """Return the share of the last sample period in which a kernel ran, 0 to 1; 0 if unknown."""
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
        except Exception:  # noqa: BLE001  # a heartbeat must not end for it
            return 0.0

    def driver_version(self) -> str | None:
        """Return the driver's version, None if unknown."""
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except Exception:  # noqa: BLE001  # the same
            return None

    def others_nbytes(self) -> int | None:
        """Return what other processes hold of the GPU's memory; None where that cannot be told.

        It cannot without NVML, nor where the driver knows this process by another number or not at all, as in
        some containers: then nothing tells its own memory from others'.  Nor where the driver does not say
        what each process holds.
        """
        try:
            held = {each.pid: each.usedGpuMemory for each in self._processes()}
            known = held.pop(os.getpid(), None) is not None and None not in held.values()
            return sum(held.values()) if known else None
        except Exception:  # noqa: BLE001  # the same
            return None

    def _processes(self) -> list[Any]:
        """Return those that compute, alone or under MPS, and those that draw; one may be among several."""
        found = list(self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        for more in ("nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            # Some GPUs draw nothing, some drivers know no MPS.
            with suppress(Exception):
                found += getattr(self._nvml, more)(self._handle)
        return found
