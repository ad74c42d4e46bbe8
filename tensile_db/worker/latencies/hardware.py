"""What a device's latencies depend on beside the op: measurements of one serve every worker on the same."""

import os
import platform
from pathlib import Path

import torch

from tensile_db.worker.devices.cuda.opening import library_versions, model_name


def hardware_name(device: torch.device, *, threads: int) -> str:
    """Return the name under which latencies of this device are kept.

    threads: of each job's kernels on the cpu device.
    """
    kernels = f"torch {torch.__version__}"
    if device.type != "cpu":
        return f"{model_name(device)}, {kernels}, {library_versions()}"
    return f"{_processor()}, {os.cpu_count()} cores, {threads} threads a job, {kernels}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
