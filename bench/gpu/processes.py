"""Jobs as processes of their own, as without a scheduler: each a plain eager training.

With MPS their kernels may run side by side; its daemon is started here if the driver brings one and lets us.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.gpu.machine import Machine

#: How long processes may take to start, all their networks included.
_START_S = 60
_RUN_S = 60


def without_mps(machine: Machine, network: str, size: int, count: int, iterations: int) -> dict[str, Any]:
    """Return the makespan and peaks of as many processes."""
    return _run(machine, network, size, count, iterations, {})


def with_mps(machine: Machine, network: str, size: int, count: int, iterations: int) -> dict[str, Any]:
    """Return the same under MPS, or why there is none."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or not machine.is_gpu:
        return {"skipped": "there is no nvidia-cuda-mps-control here"}
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        where = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        # Not through a pipe: the daemon keeps what it is given, and a pipe would not end before it does.
        said = Path(folder) / "said"
        with said.open("w") as into:
            started = subprocess.run(
                [control, "-d"],
                env=os.environ | where,
                stdout=into,
                stderr=subprocess.STDOUT,
                timeout=15,
                check=False,
            )
        if started.returncode != 0:
            return {"skipped": f"the MPS daemon did not start: {said.read_text().strip()[:500]}"}
        try:
            return _run(machine, network, size, count, iterations, where)
        finally:
            # What was measured counts, however long the daemon takes to end.
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [control],
                    input="quit\n",
                    env=os.environ | where,
                    capture_output=True,
                    text=True,
                    timeout=15,
                )


def _run(
    machine: Machine, network: str, size: int, count: int, iterations: int, extra: Mapping[str, str]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="jobs-") as folder:
        go = Path(folder) / "go"
        command = [sys.executable, "-m", "bench.gpu.process_job", machine.name, network]
        processes = [
            subprocess.Popen(
                [*command, str(size), str(iterations), str(Path(folder) / f"{number}"), str(go)],
                env=os.environ | dict(extra),
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(count)
        ]
        try:
            _wait_until_ready(Path(folder), processes)
            begin_s = time.monotonic()
            go.touch()
            for process in processes:
                process.wait(_RUN_S)
            took_s = time.monotonic() - begin_s
            done = [json.loads((Path(folder) / f"{number}.json").read_text()) for number in range(count)]
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
            return {"failed": f"{type(error).__name__}: {error}"[:800], "said": _said(processes)}
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return {
        # From the word to go to the last one's last iteration, by the machine's one clock.
        "seconds": max(each["ended_s"] for each in done) - begin_s,
        "until_gone_s": took_s,
        "allocated_nbytes": [each["max_allocated_nbytes"] for each in done],
        "reserved_nbytes": [each["max_reserved_nbytes"] for each in done],
    }


def _wait_until_ready(folder: Path, processes: list[subprocess.Popen[str]]) -> None:
    until_s = time.monotonic() + _START_S
    while len(list(folder.glob("*.ready"))) < len(processes):
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("a process ended before it was ready")
        if time.monotonic() > until_s:
            raise RuntimeError(f"not all processes were ready after {_START_S} s")
        time.sleep(0.02)


def _said(processes: list[subprocess.Popen[str]]) -> list[str]:
    said = []
    for process in processes:
        process.kill()
        _, errors = process.communicate()
        said.append((errors or "")[-600:])
    return said
