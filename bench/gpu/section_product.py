"""The whole product on this machine: tensile_train asked for in SQL of a PostgreSQL, a worker on the device.

Weights are compared with eager PyTorch's bits on the same device, peaks as the catalog has them with the
limits; a worker is killed on the way.  Where there is no PostgreSQL, and none was brought along, the section
says so and is over.
"""

import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bench.gpu import brought
from bench.gpu.machine import Machine
from bench.gpu.results import Results
from tensile_db.errors import NotInstalled

if TYPE_CHECKING:
    from bench.gpu.product_runs import Runs


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Do as much as there is time for, the most telling first."""
    # Whoever ends the section lets it end what it has started.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="tensile-product-") as name:
        folder = Path(name)
        # The server's user goes through it.
        folder.chmod(0o755)
        try:
            results.note(**brought.provide(folder))
        except NotInstalled as error:
            results.note(not_run=f"{error.message}.  {error.hint or ''}".strip())
            return
        results.attempt("server", 20, lambda: _with_server(machine, results, folder, quick=quick))


def _with_server(machine: Machine, results: Results, folder: Path, *, quick: bool) -> None:
    from bench.gpu import product, product_requests, product_runs

    machine.prepare(deterministic=True)
    if not machine.is_gpu:
        # As the worker's: sums over several threads may be in another order.
        torch.set_num_threads(1)
    subjects = product_requests.subjects(quick=quick)
    with product.server(folder, subjects.images) as cluster:
        site = product.Site(cluster)
        memory_nbytes, peaks = product_runs.memory_for(subjects, machine)
        results.note(
            server_s=round(results.spent_s, 1), worker_memory_nbytes=memory_nbytes, eager_peaks_nbytes=peaks
        )
        log = results.path.with_suffix(".worker.log")
        with site.worker(machine.name, memory_nbytes, folder, log) as started_s:
            results.note(worker_started_s=started_s)
            _runs(
                product_runs.Runs(site, subjects, machine, results, memory_nbytes=memory_nbytes, peaks=peaks)
            )


def _runs(runs: "Runs") -> None:
    steps: tuple[tuple[str, float, Callable[[], Any]], ...] = (
        ("within half of eager's peak", 15, runs.within_half),
        ("killed on the way", 15, runs.killed),
        ("predictions", 3, runs.predictions),
        ("two at once", 15, runs.two_at_once),
        ("without a limit", 8, runs.without_limit),
        ("explained", 5, runs.explained),
    )
    for name, needs_s, step in steps:
        runs.results.attempt(name, needs_s if runs.machine.is_gpu else 2, step)
