"""Batch sizes from 4 to 64: what each policy saves and costs, or how fast it is within a device's memory.

    shares      for budgets that are shares of eager's peak at that batch, as TENSILE's figure 7 asks
    memory      within all of the device's memory, as TSPLIT's figure 12 asks: samples a second

Source: TENSILE section V-G and figure 7; TSPLIT section VI-B and figure 12.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.families import family
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import Subject, best, eor_at, point, subject, sweep
from tensile_db.scheduler.plan import DeviceSpec

BATCHES = (4, 8, 16, 32, 64)
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
_NS_PER_S = 1_000_000_000


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str],
    policies: Sequence[str],
    batches: Sequence[int],
    optimizer: str,
    within_memory: bool,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document; tell: told what is being done."""
    rows = []
    for name in networks:
        chosen = workload(name)
        graphs = family(partial(captures.graph, chosen, optimizer=optimizer), name)
        for batch in batches:
            job = subject(graphs.at(batch), device)
            for policy in policies:
                tell(f"{name}, batch {batch}: {policy}")
                figures = _speed(job, policy, batch) if within_memory else _rates(job, policy)
                rows.append({"network": name, "batch": batch, "policy": policy} | figures)
    return {
        "bench": "batch",
        "device": asdict(device),
        "workload": {"networks": list(networks), "batches": list(batches), "optimizer": optimizer},
        "within": "memory" if within_memory else "shares",
        "rows": rows,
    }


def _rates(job: Subject, policy: str) -> dict[str, Any]:
    points = sweep(job, policy, SHARES)
    return {"points": points, "best": best(points), "eor_at_half": eor_at(points, 0.5)}


def _speed(job: Subject, policy: str, batch: int) -> dict[str, Any]:
    made = point(job, policy, job.device.memory_nbytes)
    if "time_ns" in made:
        made["samples_per_s"] = round(batch * _NS_PER_S / made["time_ns"], 1)
    return {"point": made}
