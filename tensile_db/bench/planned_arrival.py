"""Plans a job that comes to others which run, in a process of its own, as a worker does it: no torch.

Times are processor times: of the answer that it waits for, and of what is done while nobody waits.

Source: bench/plan_time.py, which starts it.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from tensile_db.bench.points import subject
from tensile_db.graph import StepGraph
from tensile_db.scheduler.foreseeing import foresee
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies.in_parts import find_splits
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.arrivals import plan_arrivals
from tensile_db.scheduler.sharing.demand import demand_of
from tensile_db.scheduler.sharing.improving import AsGood, improved
from tensile_db.scheduler.sharing.rounds import slowdown
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tensile_db.worker.planning.known_graphs import KnownGraphs


def measure_arrival(
    graphs: Sequence[StepGraph], device: DeviceSpec, share: float, rounds: int
) -> dict[str, Any]:
    """Return how long the last job waits for its plan where the others run, and what comes of it.

    share: of the sum of the eager peaks.  `seconds`: of the answer that is made at once, median; `beside`:
    whether the others keep plans and shares in it; `slowdown`: what an iteration of all jobs takes by it, as
    a multiple of what their ops take one after another.  `mended_s` and `mended`: of what is looked for
    afterwards, and the slowdown then.  `careful_s` and `careful`: of an answer made with care.
    What is done before the planner is asked: `foreseen_s`, what the planner works out of the newcomer's graph
    when that has been captured, median; `splits_s`, what another process takes to find all jobs' splits.
    """
    jobs = [subject(graph, device) for graph in graphs]
    memory_nbytes = int(share * sum(job.eager_peak_nbytes for job in jobs))
    device = replace(device, memory_nbytes=max(memory_nbytes, *(job.least_nbytes for job in jobs)))
    begin_s = time.process_time()
    # A worker has found them before it asks for a plan.
    splits = [find_splits(job.graph, device.memory_nbytes) for job in jobs]
    splits_s = time.process_time() - begin_s
    seconds, foreseen_s = [], []
    # As the worker's planning process does, between whose answers there is time for it.
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            # Of a copy nothing is known: the newcomer's graph is new to the planner.
            requests = [
                JobRequest(
                    job_id=number,
                    graph=replace(job.graph),
                    latencies_ns=job.latencies_ns,
                    found_splits=found,
                )
                for number, (job, found) in enumerate(zip(jobs, splits, strict=True))
            ]
            running = plan_shared(requests[:-1], device)
            for request in requests[:-1]:
                foresee(request.graph)
            begin_s = time.process_time()
            for graph in KnownGraphs().known([requests[-1].graph]):
                foresee(graph)
            foreseen_s.append(time.process_time() - begin_s)
            asked = [*_followed(requests[:-1], running), requests[-1]]
            begin_s = time.process_time()
            beside = plan_arrivals(asked, device, "auto", [*(plan.share for plan in running), None])
            in_force = [*(plan.within for plan in running), None]
            if beside is None:
                plans = plan_shared(asked, device, in_force=in_force, at_once=True)
            seconds.append(time.process_time() - begin_s)
    finally:
        gc.enable()
    plans = plans if beside is None else (*running, *beside)
    demands = [demand_of(request, device) for request in requests]
    begin_s = time.process_time()
    mended = _mended(requests, plans, device)
    mended_s = time.process_time() - begin_s
    begin_s = time.process_time()
    careful = plan_shared(asked, device, in_force=in_force)
    careful_s = time.process_time() - begin_s
    return {
        "seconds": round(median(seconds), 3),
        "foreseen_s": round(median(foreseen_s), 3),
        "splits_s": round(splits_s, 3),
        "beside": beside is not None,
        "slowdown": round(slowdown(plans, demands, device), 4),
        "mended_s": round(mended_s, 3),
        "mended": round(slowdown(mended, demands, device), 4),
        "careful_s": round(careful_s, 3),
        "careful": round(slowdown(careful, demands, device), 4),
    }


def _followed(requests: Sequence[JobRequest], plans: Sequence[SharedPlan]) -> list[JobRequest]:
    return [
        replace(request, former=plan.job_plan.as_former)
        for request, plan in zip(requests, plans, strict=True)
    ]


def _mended(
    requests: Sequence[JobRequest], plans: Sequence[SharedPlan], device: DeviceSpec
) -> tuple[SharedPlan, ...]:
    """Return the plans after better lanes, and better plans for them, were looked for."""
    if any(plan.within.quick for plan in plans):
        plans = plan_shared(_followed(requests, plans), device, in_force=[plan.within for plan in plans])
    mended = list(plans)
    for number, request in enumerate(_followed(requests, plans)):
        plan = mended[number]
        if not plan.job_plan.quick:
            continue
        found = improved(request, plan.within, plan.share)
        if not isinstance(found, AsGood):
            others = [other.share for other in mended[:number] + mended[number + 1 :]]
            if needed_nbytes([*others, found.share]) <= device.memory_nbytes:
                mended[number] = found
    return tuple(mended)
