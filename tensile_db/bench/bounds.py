"""What memory costs at least: the lower bound on EOR for budgets from eager's peak down.

Ops split into parts are beyond it (scheduler/bound/time_bound.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import title_of, workload
from tensile_db.bench.points import subject
from tensile_db.bench.reports.markdown import gib, table
from tensile_db.bench.single import SHARES, bound_points
from tensile_db.scheduler.plan import DeviceSpec


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str],
    batch: int,
    optimizer: str,
    shares: Sequence[float] = SHARES,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document; tell: told what is being done."""
    rows = []
    for name in networks:
        tell(name)
        job = subject(captures.graph(workload(name), batch, optimizer), device)
        rows.append({"network": name} | job.facts | {"bound": bound_points(job, shares)})
    return {
        "bench": "bounds",
        "device": asdict(device),
        "workload": {"networks": list(networks), "batch": batch, "optimizer": optimizer},
        "shares": sorted(shares, reverse=True),
        "rows": rows,
    }


def markdown(document: dict[str, Any]) -> str:
    """Return the table: a row for each network."""
    shares = document["shares"]
    rows: list[list[object]] = []
    for row in document["rows"]:
        by_msr = {point["msr"]: point["eor"] for point in row["bound"]}
        least = row["bound"][-1]
        best = max(row["bound"], key=lambda point: point["cbr"])
        rows.append(
            [
                title_of(row["network"]),
                gib(row["eager_peak_nbytes"]),
                *(by_msr.get(round(1 - share, 4), "-") for share in shares),
                f"{least['eor']:.3f} at MSR {least['msr']:.3f}",
                f"{best['cbr']:.3f} at MSR {best['msr']:.3f}",
            ]
        )
    heads = [f"EOR at {share:.0%}" for share in shares]
    return table(["network", "eager peak GiB", *heads, "at the least peak", "best CBR"], rows)
