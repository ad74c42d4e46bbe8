"""Jobs that share a device under one policy, and their figures together.

    MSR = (VMP - EMP) / VMP     VMP: the sum of the jobs' eager peaks
                                EMP: the most that the plans in force at one time may hold together
    EOR = ETC / VTC             VTC: all iterations of all jobs in eager PyTorch, one after another
                                ETC: from the first arrival until the last job is done, all at once

Since the simulated device runs one op at a time, eager jobs that run at once take VTC as well.  What the jobs
really hold at one time is less than EMP, since their peaks need not meet; it stands beside.

Source: TENSILE sections V-D and V-E.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensile_db.bench.points import AMPLE_NBYTES, Subject, rates
from tensile_db.bench.together import Arrival, Stage, run_together
from tensile_db.errors import DoesNotFit, InvalidRequest
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import UNBUDGETED
from tensile_db.scheduler.request import JobRequest


def sweep(
    jobs: Sequence[Subject],
    arrivals_ns: Sequence[int],
    iterations: int,
    policy: str,
    device: DeviceSpec,
    shares: Sequence[float],
) -> list[dict[str, Any]]:
    """Return the policy's points: one for each share of VMP, or the only one where it heeds no budget.

    jobs: in the order of their arrivals.  Each arrival makes a new plan for all jobs that are there.
    """
    if policy in UNBUDGETED:
        return [_point(jobs, arrivals_ns, iterations, policy, device, None)]
    return [_point(jobs, arrivals_ns, iterations, policy, device, share) for share in shares]


def _point(
    jobs: Sequence[Subject],
    arrivals_ns: Sequence[int],
    iterations: int,
    policy: str,
    device: DeviceSpec,
    share: float | None,
) -> dict[str, Any]:
    eager_nbytes = sum(job.eager_peak_nbytes for job in jobs)
    eager_ns = iterations * sum(job.eager_ns for job in jobs)
    memory_nbytes = AMPLE_NBYTES if share is None else int(share * eager_nbytes)
    entry: dict[str, Any] = {"share": share}
    try:
        stages, held_nbytes, planning_s = stages_of(jobs, arrivals_ns, policy, device, memory_nbytes)
    except (DoesNotFit, InvalidRequest) as error:
        return entry | {"refused": error.message}
    course = run_together(
        [
            Arrival(graph=job.graph, latencies_ns=job.latencies_ns, at_ns=at_ns, iterations=iterations)
            for job, at_ns in zip(jobs, arrivals_ns, strict=True)
        ],
        stages,
        device,
    )
    return (
        entry
        | rates(held_nbytes, eager_nbytes, course.makespan_ns, eager_ns)
        | {"at_one_time_nbytes": course.device_peak_nbytes, "planning_s": round(planning_s, 2)}
    )


def stages_of(
    jobs: Sequence[Subject],
    arrivals_ns: Sequence[int],
    policy: str,
    device: DeviceSpec,
    memory_nbytes: int,
) -> tuple[list[Stage], int, float]:
    """Return the plans from each arrival on, EMP, and how long the longest planning took, in s.

    Raises DoesNotFit, and InvalidRequest where the policy cannot plan such a graph.
    """
    # Those that run when another one arrives wait for its plan, and theirs.
    hurried = len(set(arrivals_ns)) > 1
    requests = [
        JobRequest(
            job_id=number,
            graph=job.graph,
            latencies_ns=job.latencies_ns,
            policy=policy,
            hurried=hurried,
        )
        for number, job in enumerate(jobs)
    ]
    stages, held_nbytes, planning_s = [], 0, 0.0
    for at_ns in sorted(set(arrivals_ns)):
        there = [
            request for request, arrival_ns in zip(requests, arrivals_ns, strict=True) if arrival_ns <= at_ns
        ]
        begin_s = time.perf_counter()
        plans = plan_jobs(there, replace(device, memory_nbytes=memory_nbytes))
        planning_s = max(planning_s, time.perf_counter() - begin_s)
        held_nbytes = max(held_nbytes, sum(plan.prediction.peak_nbytes for plan in plans))
        programs = (*(plan.program for plan in plans), *[None] * (len(jobs) - len(there)))
        rewritings = {number: made.plan.rewriting for number, made in enumerate(plans)}
        stages.append(Stage(at_ns=at_ns, programs=programs, rewritings=rewritings))
    return stages, held_nbytes, planning_s
