"""Different networks, launched one by one in random order.

Each order is drawn from a seed.  A job arrives when the one before it could have run two iterations alone.

Source: TENSILE section V-E and table IV, which repeats it three times and does not say how far apart the
launches are.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import accumulate
from statistics import fmean
from typing import Any

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import best, subject
from tensile_db.bench.sharing import sweep
from tensile_db.scheduler.plan import DeviceSpec

#: Of the sum of the jobs' eager peaks.
SHARES = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
#: Of each job, and of the job before one until it arrives.
ITERATIONS, APART = 10, 2
SEEDS = (1, 2, 3)


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str],
    policies: Sequence[str],
    batch: int,
    optimizer: str,
    seeds: Sequence[int] = SEEDS,
    shares: Sequence[float] = SHARES,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document; tell: told what is being done."""
    jobs = {name: subject(captures.graph(workload(name), batch, optimizer), device) for name in networks}
    orders = {seed: _order(networks, seed) for seed in seeds}
    rows = []
    for policy in policies:
        runs: list[dict[str, Any]] = []
        for seed, order in orders.items():
            tell(f"{policy}: {', '.join(order)}")
            arriving = [jobs[name] for name in order]
            arrivals_ns = [0, *accumulate(APART * job.eager_ns for job in arriving[:-1])]
            points = sweep(arriving, arrivals_ns, ITERATIONS, policy, device, shares)
            runs.append({"seed": seed, "points": points})
        points = _averaged([made["points"] for made in runs])
        rows.append({"policy": policy, "runs": runs, "points": points, "best": best(points)})
    return {
        "bench": "mixed",
        "device": asdict(device),
        "workload": {
            "networks": list(networks),
            "batch": batch,
            "optimizer": optimizer,
            "iterations": ITERATIONS,
            "apart": APART,
        },
        "seeds": list(seeds),
        "orders": {str(seed): order for seed, order in orders.items()},
        "rows": rows,
    }


def _order(networks: Sequence[str], seed: int) -> list[str]:
    order = list(networks)
    random.Random(seed).shuffle(order)
    return order


def _averaged(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return for each share the mean of the runs' figures, as the paper reports it."""
    points = []
    for same in zip(*runs, strict=True):
        refused = [entry["refused"] for entry in same if "refused" in entry]
        figures = (
            {} if refused else {key: round(fmean(e[key] for e in same), 4) for key in ("msr", "eor", "cbr")}
        )
        points.append({"share": same[0]["share"]} | figures | ({"refused": refused[0]} if refused else {}))
    return points
