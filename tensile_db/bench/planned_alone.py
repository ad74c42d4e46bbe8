"""Plans jobs in a process of its own, so that its memory and time are the planner's: no torch.

First plans are of graphs that the planner has not seen.  Re-plans begin with plans in force, of graphs that
are known, as the worker's planning process has them.

Source: bench/plan_time.py, which starts it.
"""

import gc
import random
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import median
from typing import Any

from tensile_db.bench.points import subject
from tensile_db.errors import TensileError
from tensile_db.graph import StepGraph
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest

#: Latencies drift by factors in between, one for each kind of op.
_DRIFT = (0.7, 1.4)
#: What an arrival leaves of the memory.
_LEFT = 0.8


class Change(StrEnum):
    """Why jobs are planned again."""

    DRIFT = "drift"
    ARRIVAL = "arrival"


def measure(
    graphs: Sequence[StepGraph],
    device: DeviceSpec,
    policy: str,
    share: float | None,
    rounds: int,
    change: Change | None = None,
) -> dict[str, Any]:
    """Return the median processor time of planning the graphs together, and the memory that it took.

    share: of the sum of the eager peaks; None: all of the device's memory.  change: plan them, then measure
    how they are planned again; `slower` is the re-plan's time of an iteration over a first plan's.
    """
    jobs = [subject(graph, device) for graph in graphs]
    requests = [
        JobRequest(job_id=number, graph=job.graph, latencies_ns=job.latencies_ns, policy=policy)
        for number, job in enumerate(jobs)
    ]
    eager_nbytes = sum(job.eager_peak_nbytes for job in jobs)
    memory_nbytes = device.memory_nbytes if share is None else int(share * eager_nbytes)
    memory_nbytes = max(memory_nbytes, sum(job.least_nbytes for job in jobs))
    budgeted = replace(device, memory_nbytes=memory_nbytes)
    slower = {}
    if change is not None:
        formers = [made.as_former for made in plan_jobs(requests, budgeted)]
        if change is Change.DRIFT:
            requests = [_drifted(request) for request in requests]
        else:
            least_nbytes = sum(job.least_nbytes for job in jobs)
            budgeted = replace(budgeted, memory_nbytes=max(int(_LEFT * memory_nbytes), least_nbytes))
        fresh_ns = sum(made.prediction.time_ns for made in plan_jobs(requests, budgeted))
        requests = [
            replace(request, former=former) for request, former in zip(requests, formers, strict=True)
        ]
        again_ns = sum(made.prediction.time_ns for made in plan_jobs(requests, budgeted))
        slower = {"slower": round(again_ns / fresh_ns, 4)}
    eager_ns = sum(sum(request.latencies_ns) for request in requests)
    seconds = []
    # As the worker's planning process does, between whose answers there is time for it.
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            # Nothing is known of a copy; a timeline is of the device's object.
            asked = requests if change is not None else [_unseen(request) for request in requests]
            round_device = replace(budgeted)
            begin_s = time.process_time()
            plans = plan_jobs(asked, round_device)
            seconds.append(time.process_time() - begin_s)
        # Not in the rounds above, which it would slow down.
        tracemalloc.start()
        plans = plan_jobs(requests, budgeted)
        _, most_nbytes = tracemalloc.get_traced_memory()
    except TensileError as error:
        return {"refused": error.message}
    finally:
        tracemalloc.stop()
        gc.enable()
    return slower | {
        "seconds": round(median(seconds), 3),
        "memory_nbytes": most_nbytes,
        "msr": round(1 - sum(plan.prediction.peak_nbytes for plan in plans) / eager_nbytes, 4),
        "eor": round(sum(plan.prediction.time_ns for plan in plans) / eager_ns, 4),
    }


def _unseen(request: JobRequest) -> JobRequest:
    """Return the request with a graph of which nothing is known."""
    return replace(request, graph=replace(request.graph))


def _drifted(request: JobRequest) -> JobRequest:
    """Return the request with other latencies, the same in every run."""
    drawn = random.Random(0)
    kinds = sorted({op.target for op in request.graph.ops})
    factors = {kind: drawn.uniform(*_DRIFT) for kind in kinds}
    latencies_ns = zip(request.graph.ops, request.latencies_ns, strict=True)
    return replace(
        request, latencies_ns=tuple(max(1, int(factors[op.target] * ns)) for op, ns in latencies_ns)
    )
