"""Equal jobs on one device, from one to four, then eight.

Source: TENSILE section V-D and figure 6; the 2021 draft's table 2.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import best, subject
from tensile_db.bench.sharing import sweep
from tensile_db.scheduler.plan import DeviceSpec

COUNTS = (1, 2, 3, 4, 8)
#: Of the sum of the jobs' eager peaks.
SHARES = (0.9, 0.7, 0.5, 0.3)
#: Of each job.
ITERATIONS = 6


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str],
    policies: Sequence[str],
    batch: int,
    optimizer: str,
    counts: Sequence[int] = COUNTS,
    shares: Sequence[float] = SHARES,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document; tell: told what is being done."""
    rows = []
    for name in networks:
        job = subject(captures.graph(workload(name), batch, optimizer), device)
        for count in counts:
            for policy in policies:
                tell(f"{count} x {name}: {policy}")
                points = sweep([job] * count, [0] * count, ITERATIONS, policy, device, shares)
                rows.append(
                    {"network": name, "jobs": count, "policy": policy, "points": points, "best": best(points)}
                )
    return {
        "bench": "scale",
        "device": asdict(device),
        "workload": {
            "networks": list(networks),
            "batch": batch,
            "optimizer": optimizer,
            "iterations": ITERATIONS,
        },
        "rows": rows,
    }
