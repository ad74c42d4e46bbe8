"""Plans jobs in a process of its own, so that its memory and time are the planner's: no torch.

First plans are of graphs that the planner has not seen.  Re-plans begin with plans in force, of graphs that
are known, as the worker's planning process has them.

Source: bench/plan_time.py, which starts it.
"""

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import median
from typing import Any, NamedTuple

from tensile_db.bench.points import subject
from tensile_db.errors import TensileError
from tensile_db.graph import StepGraph
from tensile_db.scheduler.foreseeing import foresee
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import require_policy
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import Within
from tensile_db.scheduler.sharing.shared_plans import plan_shared

#: Latencies drift by factors in between, one for each kind of op.
_DRIFT = (0.7, 1.4)
#: What an arrival leaves of the memory.
_LEFT = 0.8


class Change(StrEnum):
    """Why jobs are planned again."""

    DRIFT = "drift"
    ARRIVAL = "arrival"


class _Plans(NamedTuple):
    """Plans, what they hold together in bytes, and what each was made for, where that is known."""

    plans: Sequence[JobPlan]
    held_nbytes: int
    within: Sequence[Within]


def measure(
    graphs: Sequence[StepGraph],
    device: DeviceSpec,
    policy: str,
    share: float | None,
    rounds: int,
    change: Change | None = None,
    in_lanes: bool = False,
    at_once: bool = False,
    find: Callable[[str], None] = require_policy,
) -> dict[str, Any]:
    """Return the median processor time of planning the graphs together, and the memory that it took.

    share: of the sum of the eager peaks; None: all of the device's memory.  They get what their whole ops
    need where that is more: `given` is the share that they were planned within.
    change: plan them, then measure how they are planned again; `slower` is the re-plan's time of an iteration
    over a first plan's.  That is what others wait for; where it may be better, `improved_s` is the time that
    looking for better plans takes while nobody waits, and `improved` what `slower` comes to.
    in_lanes: planned as a worker does it, for lanes and turns, else side by side, each with its share.
    at_once: first plans are made as a worker has them made for jobs that wait for them; lanes are chosen with
    care all the same.
    find: has the policy at hand in this process.
    """
    find(policy)
    plan = _plan_in_lanes if in_lanes else _plan_side_by_side
    jobs = [subject(graph, device) for graph in graphs]
    requests = [
        JobRequest(
            job_id=number,
            graph=job.graph,
            latencies_ns=job.latencies_ns,
            policy=policy,
            at_once=at_once,
            hurried=at_once,
        )
        for number, job in enumerate(jobs)
    ]
    eager_nbytes = sum(job.eager_peak_nbytes for job in jobs)
    memory_nbytes = device.memory_nbytes if share is None else int(share * eager_nbytes)
    memory_nbytes = max(memory_nbytes, sum(job.least_nbytes for job in jobs))
    budgeted = replace(device, memory_nbytes=memory_nbytes)
    slower: dict[str, float] = {}
    first, first_nbytes = requests, memory_nbytes
    in_force: Sequence[Within] = ()
    if change is not None:
        before, _, in_force = plan(requests, budgeted, memory_nbytes)
        formers = [made.as_former for made in before]
        if change is Change.DRIFT:
            requests = [_drifted(request) for request in requests]
        else:
            least_nbytes = sum(job.least_nbytes for job in jobs)
            memory_nbytes = max(int(_LEFT * memory_nbytes), least_nbytes)
        fresh_ns = _period_ns(plan(requests, budgeted, memory_nbytes)[0])
        requests = [
            replace(request, former=former) for request, former in zip(requests, formers, strict=True)
        ]
        again = plan(requests, budgeted, memory_nbytes, in_force)[0]
        slower = {"slower": round(_period_ns(again) / fresh_ns, 4)}
        if any(made.quick for made in again):
            improving = [
                replace(request, former=made.as_former, improving=made.quick)
                for request, made in zip(requests, again, strict=True)
            ]
            begin_s = time.process_time()
            improved = plan(improving, budgeted, memory_nbytes)[0]
            slower |= {
                "improved_s": round(time.process_time() - begin_s, 3),
                "improved": round(_period_ns(improved) / fresh_ns, 4),
            }
    given = round(memory_nbytes / eager_nbytes, 4)
    eager_ns = sum(sum(request.latencies_ns) for request in requests)
    seconds = []
    # As the worker's planning process does, between whose answers there is time for it.
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            # Of a copy nothing is known but what the first plans needed.
            unseen = {id(request.graph): replace(request.graph) for request in requests}
            asked = [replace(request, graph=unseen[id(request.graph)]) for request in requests]
            if change is not None:
                begun = [replace(request, graph=unseen[id(request.graph)]) for request in first]
                plan(begun, budgeted, first_nbytes)
                for request in begun:
                    foresee(request.graph)
            round_device = replace(budgeted)
            begin_s = time.process_time()
            plan(asked, round_device, memory_nbytes, in_force)
            seconds.append(time.process_time() - begin_s)
        # Not in the rounds above, which it would slow down.
        tracemalloc.start()
        plans, held_nbytes, _ = plan(requests, budgeted, memory_nbytes, in_force)
        _, most_nbytes = tracemalloc.get_traced_memory()
    except TensileError as error:
        return {"refused": error.message, "given": given}
    finally:
        tracemalloc.stop()
        gc.enable()
    return slower | {
        "seconds": round(median(seconds), 3),
        "memory_nbytes": most_nbytes,
        "given": given,
        "msr": round(1 - held_nbytes / eager_nbytes, 4),
        "eor": round(sum(plan.prediction.time_ns for plan in plans) / eager_ns, 4),
    }


def _plan_side_by_side(
    requests: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int, _: Sequence[Within] = ()
) -> _Plans:
    """Return plans, each within its share of so much of the device's memory."""
    plans = plan_jobs(requests, device, memory_nbytes)
    return _Plans(plans, sum(plan.prediction.peak_nbytes for plan in plans), ())


def _plan_in_lanes(
    requests: Sequence[JobRequest],
    device: DeviceSpec,
    memory_nbytes: int,
    in_force: Sequence[Within] = (),
) -> _Plans:
    """Return plans for lanes and turns within so much of the device's memory."""
    shared = plan_shared(requests, replace(device, memory_nbytes=memory_nbytes), in_force=in_force)
    held_nbytes = needed_nbytes(each.share for each in shared)
    return _Plans([each.job_plan for each in shared], held_nbytes, [each.within for each in shared])


def _period_ns(plans: Sequence[JobPlan]) -> int:
    return sum(made.prediction.time_ns for made in plans)


def _drifted(request: JobRequest) -> JobRequest:
    """Return the request with other latencies, the same in every run."""
    drawn = random.Random(0)
    kinds = sorted({op.target for op in request.graph.ops})
    factors = {kind: drawn.uniform(*_DRIFT) for kind in kinds}
    latencies_ns = zip(request.graph.ops, request.latencies_ns, strict=True)
    return replace(
        request, latencies_ns=tuple(max(1, int(factors[op.target] * ns)) for op, ns in latencies_ns)
    )
