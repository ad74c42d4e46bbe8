"""Captured graphs of workloads, kept in a folder between runs.

A file's name is a digest of all that decides what a capture gives: workload, batch, scale, optimizer, kind of
device, whether one thread computes or several, PyTorch's and timm's versions, and the source of capture and
of the workloads.
"""

import contextlib
import hashlib
import pickle
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from tensile_db.bench.networks.workloads import Workload
from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.capture.kernel_threads import SIMULATED_THREADS, captured_for
from tensile_db.capture.optimizers import OptimizerConfig, configure
from tensile_db.capture.precision import Precision
from tensile_db.capture.step import CapturedStep
from tensile_db.capture.train_step import capture_train_step
from tensile_db.graph import StepGraph

_PACKAGE = Path(__file__).parents[2]
#: What a capture's result depends on, below the package.
_SOURCES = (
    "graph.py",
    "capture/**/*.py",
    "bench/networks/*.py",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captures:
    """Captures training steps; those that can be kept, each once."""

    #: None: nothing is kept.
    folder: Path | None = None
    #: For which to capture.
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    #: Of its kernels, where that is the processor.
    threads: int = SIMULATED_THREADS

    def graph(self, workload: Workload, batch: int, optimizer: str | None, *, scale: int = 1) -> StepGraph:
        """Return the graph of a training step; of a forward pass, where there is no optimizer.

        Raises InvalidRequest as the workload and capture do.
        """
        if self.folder is None or not workload.can_be_kept:
            return self._capture(workload, batch, optimizer, scale)
        # Other devices of a kind have the same operators.
        kind = "" if self.device.type == "cpu" else f"-{self.device.type}"
        if self.device.type == "cpu" and self.threads == 1:
            # Any number but one gives the same kernels.
            kind = "-one-thread"
        name = f"{workload.name}-{batch}-{scale}-{optimizer or 'forward'}{kind}-{code_digest()}.pickle"
        path = self.folder / name
        if path.exists():
            # Written below, by this user, into this user's own folder; what is damaged is made again.
            with contextlib.suppress(pickle.UnpicklingError, EOFError):
                graph: StepGraph = pickle.loads(path.read_bytes())  # noqa: S301
                return graph
        graph = self._capture(workload, batch, optimizer, scale)
        self.folder.mkdir(parents=True, exist_ok=True)
        # Whole or not at all, also beside another run.
        partial = path.with_suffix(".partial")
        partial.write_bytes(pickle.dumps(graph, protocol=pickle.HIGHEST_PROTOCOL))
        partial.replace(path)
        return graph

    def _capture(self, workload: Workload, batch: int, optimizer: str | None, scale: int) -> StepGraph:
        model = workload.module(batch, scale)
        with captured_for(self.threads):
            if optimizer is None:
                shape = (batch * workload.rows, *workload.row_shape)
                dtype = workload.features_dtype
                return capture_forward_step(
                    model, shape, features_dtype=dtype, device=self.device, architecture=workload.name
                ).graph
            return capture_workload(workload, model, batch, configure(optimizer), self.device).graph


def capture_workload(
    workload: Workload,
    model: nn.Module,
    batch: int,
    optimizer: OptimizerConfig,
    device: torch.device,
    precision: Precision = Precision.FLOAT32,
) -> CapturedStep:
    """Capture the training step of a workload's network, as it was built for this batch, for a device.

    What the network prints goes to standard error.
    """
    with redirect_stdout(sys.stderr):
        return capture_train_step(
            model,
            batch_shape=(batch * workload.rows, *workload.row_shape),
            target="classes",
            optimizer=optimizer,
            features_dtype=workload.features_dtype,
            targets_per_row=workload.targets_per_row,
            device=device,
            precision=precision,
            architecture=workload.name,
        )


@cache
def code_digest() -> str:
    """Return a digest of the code and versions that captures come from."""
    digest = hashlib.sha256(f"{version('torch')} {version('timm')}".encode())
    for pattern in _SOURCES:
        for path in sorted(_PACKAGE.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
