"""What measurements of a device depend on beside the op: those of one serve every worker on the same."""

import os
import platform
from pathlib import Path

import torch

from tensile_db.worker.devices.cuda.opening import (
    blas_workspaces,
    keeps_blas_workspaces,
    library_versions,
    model_name,
)

#: Of a GPU's latencies: the host's part in handing ops over is left out (probing.py).
_KERNELS_ALONE = ", kernels alone"


def hardware_name(device: torch.device, *, threads: int) -> str:
    """Return the name under which latencies of this device are kept.

    threads: of each job's kernels on the cpu device.
    It says how they are measured, so that what was measured otherwise is left, and the device measured anew.
    """
    kernels = f"torch {torch.__version__}"
    if device.type != "cpu":
        return f"{model_name(device)}, {kernels}, {library_versions()}{_KERNELS_ALONE}"
    return f"{_processor()}, {os.cpu_count()} cores, {threads} threads a job, {kernels}"


def name_for_workspaces(hardware: str, device: torch.device) -> str:
    """Return the name under which workspaces of ops on this device are kept; hardware: its name otherwise.

    They do not depend on how latencies are measured.  Where cuBLAS's are not kept for the next product, they
    are among what each is measured to need.
    """
    named = hardware.removesuffix(_KERNELS_ALONE)
    if device.type == "cpu" or keeps_blas_workspaces():
        return named
    return f"{named}, cuBLAS's {blas_workspaces()} for each product"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
