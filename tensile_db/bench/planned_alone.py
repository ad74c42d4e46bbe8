"""Plans jobs in a process of its own, so that its memory and time are the planner's: no torch.

Source: bench/plan_time.py, which starts it.
"""

import gc
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from tensile_db.bench.points import subject
from tensile_db.errors import TensileError
from tensile_db.graph import StepGraph
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest


def measure(
    graphs: Sequence[StepGraph], device: DeviceSpec, policy: str, share: float | None, rounds: int
) -> dict[str, Any]:
    """Return the median processor time of planning the graphs together, and the memory that it took.

    share: of the sum of the eager peaks; None: all of the device's memory.
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
    seconds = []
    # As the worker's planning process does, between whose answers there is time for it.
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            begin_s = time.process_time()
            plans = plan_jobs(requests, budgeted)
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
    return {
        "seconds": round(median(seconds), 3),
        "memory_nbytes": most_nbytes,
        "msr": round(1 - sum(plan.prediction.peak_nbytes for plan in plans) / eager_nbytes, 4),
        "eor": round(sum(plan.prediction.time_ns for plan in plans) / sum(job.eager_ns for job in jobs), 4),
    }
