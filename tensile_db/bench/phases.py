"""The cold start and what follows: plans made from predicted latencies meet a machine that is otherwise.

The roofline is the prediction.  The simulated machine's own latencies are the roofline's times errors drawn
from a seed: each kind of op has one in common and each op one of its own, log-normal, with about the median
relative error that the learned predictor has on shapes it has not seen (docs/latency.md).  On a device of
this machine they are measured instead.

    cold start      the plan made from predictions, at once, as a worker makes it for who waits
    updated         the plan made from the machine's own latencies, with care
    whole           two iterations with the first plan, then with the second, ten in all

Eager's time is the machine's own too.  The first iteration alone stands beside what Capuchin's passive mode
takes within the same memory.

Source: TENSILE sections IV-A and V-B, tables I and II.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from tensile_db.bench import here as this_machine
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.passive_mode import iteration_ns
from tensile_db.bench.points import Subject, plan_one, rates, subject
from tensile_db.bench.together import Arrival, Stage, run_together
from tensile_db.errors import DoesNotFit, TensileError
from tensile_db.graph import StepGraph
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobPlan
from tensile_db.worker.devices.device import Device

#: Of a kind of op, and of one op: as deviations of the logarithm.  Together their median is 0.27.
KIND_ERROR, OP_ERROR = 0.35, 0.2
#: Of eager's peak.
SHARE = 0.5
COLD_ITERATIONS, ITERATIONS = 2, 10


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str],
    policies: Sequence[str],
    batch: int,
    optimizer: str,
    seed: int,
    share: float = SHARE,
    only_first: bool = False,
    here: Device | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document of the phases, or of the first iteration alone.

    here: this machine's device whose spec `device` is; tell: told what is being done.
    """
    rows = []
    for name in networks:
        if here is None:
            predicted = subject(captures.graph(workload(name), batch, optimizer), device)
            own = _own_latencies(predicted, seed)
        else:
            own = this_machine.training(here, workload(name), batch, optimizer).job
            predicted = subject(own.graph, device)
        budget_nbytes = int(share * predicted.eager_peak_nbytes)
        row: dict[str, Any] = {"network": name, "policies": {}}
        for policy in policies:
            tell(f"{name}: {policy}")
            try:
                figures = _first if only_first else _phases
                row["policies"][policy] = figures(predicted, own, policy, budget_nbytes)
            except TensileError as error:
                row["policies"][policy] = {"refused": error.message}
        if only_first:
            row["passive_eor"] = _passive(own, budget_nbytes)
        rows.append(row)
    return {
        "bench": "first-iteration" if only_first else "phases",
        "device": asdict(device),
        "workload": {"networks": list(networks), "batch": batch, "optimizer": optimizer, "share": share},
        "seeds": [seed],
        "rows": rows,
    }


def true_latencies_ns(graph: StepGraph, predicted_ns: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return the machine's own latencies, by op id, in ns."""
    source = random.Random(seed)
    kinds = sorted({op.target for op in graph.ops})
    factors = {kind: source.lognormvariate(0.0, KIND_ERROR) for kind in kinds}
    return tuple(
        max(1, int(ns * factors[op.target] * source.lognormvariate(0.0, OP_ERROR)))
        for op, ns in zip(graph.ops, predicted_ns, strict=True)
    )


def _own_latencies(job: Subject, seed: int) -> Subject:
    latencies_ns = true_latencies_ns(job.graph, job.latencies_ns, seed)
    return replace(job, latencies_ns=latencies_ns, eager_ns=sum(latencies_ns))


def _phases(predicted: Subject, own: Subject, policy: str, budget_nbytes: int) -> dict[str, Any]:
    cold = plan_one(predicted, policy, budget_nbytes, at_once=True)
    updated = plan_one(own, policy, budget_nbytes)
    first_ns, _ = _walk(own, [(0, cold)], COLD_ITERATIONS)
    found = {}
    for phase, plans, iterations in (
        ("cold start", [(0, cold)], COLD_ITERATIONS),
        ("updated", [(0, updated)], ITERATIONS - COLD_ITERATIONS),
        ("whole", [(0, cold), (first_ns, updated)], ITERATIONS),
    ):
        took_ns, peak_nbytes = _walk(own, plans, iterations)
        found[phase] = rates(peak_nbytes, own.eager_peak_nbytes, took_ns, iterations * own.eager_ns)
    return found


def _first(predicted: Subject, own: Subject, policy: str, budget_nbytes: int) -> dict[str, Any]:
    begin_s = time.perf_counter()
    predict_latencies_ns(predicted.graph, predicted.device)
    made = plan_one(predicted, policy, budget_nbytes, at_once=True)
    planning_s = time.perf_counter() - begin_s
    took_ns, peak_nbytes = _walk(own, [(0, made)], 1)
    return rates(peak_nbytes, own.eager_peak_nbytes, took_ns, own.eager_ns) | {
        "planning_s": round(planning_s, 2)
    }


def _passive(own: Subject, budget_nbytes: int) -> float | None:
    try:
        took_ns = iteration_ns(own.graph, own.latencies_ns, own.device, budget_nbytes)
    except DoesNotFit:
        return None
    return round(took_ns / own.eager_ns, 4)


def _walk(job: Subject, plans: Sequence[tuple[int, JobPlan]], iterations: int) -> tuple[int, int]:
    """Return the time of so many iterations with these plans, each from a time on, and their peak."""
    course = run_together(
        [Arrival(graph=job.graph, latencies_ns=job.latencies_ns, at_ns=0, iterations=iterations)],
        [
            Stage(at_ns=at_ns, programs=(made.program,), rewritings={0: made.plan.rewriting})
            for at_ns, made in plans
        ],
        job.device,
    )
    return course.makespan_ns, course.device_peak_nbytes
