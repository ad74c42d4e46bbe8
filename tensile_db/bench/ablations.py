"""What Capuchin's mechanisms bring one by one, within a P100's memory.

    ATP + DS    swaps chosen by access times, copies decoupled from ops
    + FA        in-triggers moved earlier by feedback
    ATP         recomputation chosen by access times
    + CR        collective recomputation

Source: Capuchin section 6.2 and figure 8; its batches.
Differs: its OpenAI-S, which keeps the outputs of convolutions and matrix products, has no counterpart here.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.families import family
from tensile_db.bench.networks.workloads import title_of, workload
from tensile_db.bench.points import Subject, point, rates, subject
from tensile_db.bench.reports.markdown import table
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import capuchin
from tensile_db.scheduler.policies.capuchin import Mechanisms
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.timeline import simulate

#: Network, batches, the policy compared with, and the steps; then, by batch, what section 6.2 says of a step:
#: how much faster it is than the one before, the first than the policy compared with.
_FIGURES: tuple[tuple[str, tuple[int, ...], str, dict[str, Mechanisms], dict[int, dict[str, float]]], ...] = (
    (
        "inception_v3",
        (200, 400),
        "vdnn_conv",
        {
            "ATP + DS": Mechanisms(recompute=False, feedback=False),
            "ATP + DS + FA": Mechanisms(recompute=False),
        },
        {200: {"ATP + DS": 0.739, "ATP + DS + FA": 0.219}},
    ),
    (
        "resnet50",
        (300, 540),
        "checkpoint_articulation",
        {
            "ATP": Mechanisms(swap=False, feedback=False, collective=False),
            "ATP + CR": Mechanisms(swap=False, feedback=False),
        },
        {300: {"ATP + CR": 0.0}, 540: {"ATP": 0.107, "ATP + CR": 0.071}},
    ),
)


def run(
    captures: Captures, device: DeviceSpec, *, optimizer: str, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Return the document; tell: told what is being done."""
    rows = []
    for name, batches, other, steps, paper in _FIGURES:
        graphs = family(partial(captures.graph, workload(name), optimizer=optimizer), name)
        for batch in batches:
            job = subject(graphs.at(batch), device)
            tell(f"{name}, batch {batch}")
            rows.append(_row(name, batch, other, point(job, other, device.memory_nbytes), None))
            for label, mechanisms in steps.items():
                said = paper.get(batch, {}).get(label)
                rows.append(_row(name, batch, label, _planned(job, mechanisms), said))
    return {
        "bench": "ablations",
        "device": asdict(device),
        "workload": {"networks": [name for name, *_ in _FIGURES], "optimizer": optimizer},
        "rows": rows,
    }


def _row(name: str, batch: int, label: str, made: dict[str, Any], said: float | None) -> dict[str, Any]:
    return {"network": name, "batch": batch, "label": label, "paper_faster": said} | made


def _planned(job: Subject, mechanisms: Mechanisms) -> dict[str, Any]:
    request = JobRequest(job_id=1, graph=job.graph, latencies_ns=job.latencies_ns, policy="capuchin")
    needed_nbytes = capuchin.least_nbytes(job.graph)
    if needed_nbytes > job.device.memory_nbytes:
        error = DoesNotFit(needed_nbytes=needed_nbytes, budget_nbytes=job.device.memory_nbytes)
        return {"refused": error.message}
    plan = capuchin.plan_one(request, job.device, job.device.memory_nbytes, 1, mechanisms)
    timeline = simulate(job.graph, job.latencies_ns, plan, job.device)
    return rates(timeline.peak_nbytes, job.eager_peak_nbytes, timeline.period_ns, job.eager_ns)


def markdown(document: dict[str, Any]) -> str:
    """Return the table: EOR of each step, and how much faster it is than the one before."""
    rows: list[list[object]] = []
    before: dict[str, Any] = {}
    for row in document["rows"]:
        same = (before.get("network"), before.get("batch")) == (row["network"], row["batch"])
        faster = None
        if same and "time_ns" in row and "time_ns" in before:
            faster = f"{before['time_ns'] / row['time_ns'] - 1:+.1%}"
        said = row["paper_faster"]
        rows.append(
            [
                title_of(row["network"]),
                row["batch"],
                row["label"],
                row.get("eor", row.get("refused")),
                faster,
                None if said is None else f"{said:+.1%}",
            ]
        )
        before = row
    return table(["network", "batch", "plan", "EOR", "faster than the one above", "paper"], rows)
