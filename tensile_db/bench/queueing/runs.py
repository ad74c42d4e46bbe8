"""`bench sharing`: many jobs on one device, by the worker's own decisions.

    together        n equal jobs that come at once, in ever less memory: how long until all are done
    without_lanes   the same jobs side by side, by each policy (`side_by_side.py`)
    trace           100 jobs of Salus' table 3 that come over half an hour
    fair            three equal jobs that come 15 s apart, and go in the reverse order
    search          300 equal jobs that come at once (`searches.py`)

Source: Salus table 2, figures 8, 11 and 12, section 5.
Differs: the trace (`trace.py`), in which short iterations take turns of a tenth of a second.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.salus import SALUS
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import Subject, subject
from tensile_db.bench.queueing import searches, side_by_side
from tensile_db.bench.queueing import trace as salus_trace
from tensile_db.bench.queueing.searches import training
from tensile_db.bench.queueing.simulation import (
    PlanShared,
    Stay,
    Submission,
    completions_s,
    simulate,
    summary,
)
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.scheduler.sharing.shared_plans import Made, plan_shared

#: Jobs, and the memory of the device as shares of the sum of their eager peaks.
TOGETHER = {2: (0.7, 0.45, 0.35), 4: (0.5, 0.28, 0.25, 0.2), 8: (0.4, 0.2, 0.15, 0.125)}
#: One job of each network.
MIXED = "mixed"
_MIXED_SHARES = (0.5, 0.3, 0.2)
_ITERATIONS = 40
_SEED = 23
_FAIR_JOBS, _FAIR_APART_S, _FAIR_S = 3, 15.0, 90.0
#: A turn in the trace, at least: an iteration of vae takes 0.7 ms, and there are millions of them.
_TURN_S = 0.1
_SECOND = 10**9


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str],
    sharing: Sequence[str] = tuple(SHARING_POLICIES),
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document; networks: of the jobs that come at once; tell: told what is being done."""
    plan = partial(_plan, {})
    subjects = {name: subject(captures.graph(workload(name), 16, "adam"), device) for name in networks}
    groups = [(name, [job] * count, TOGETHER[count]) for name, job in subjects.items() for count in TOGETHER]
    if len(subjects) > 1:
        groups.append((MIXED, list(subjects.values()), _MIXED_SHARES))
    together = []
    for name, jobs, shares in groups:
        for share in shares:
            for policy in ("auto", "pack"):
                tell(f"{len(jobs)} x {name} in {share:.0%}: {policy}")
                together.append(
                    {"network": name, "jobs": len(jobs), "share": share, "sharing": policy}
                    | _together(jobs, share, policy, device)
                )
    without_lanes = side_by_side.run(subjects, device, _ITERATIONS, tell=tell)
    trace = _trace(captures, device)
    rows: dict[str, Any] = {"together": together, "without_lanes": without_lanes}
    rows |= {"trace": [], "fair": [], "search": []}
    for policy in sharing:
        tell(f"trace: {policy}")
        stays = simulate(trace, device, policy, plan, max_jobs=salus_trace.JOBS)
        rows["trace"].append({"sharing": policy} | summary(stays) | {"completions_s": completions_s(stays)})
    for policy in sharing:
        tell(f"three equal jobs: {policy}")
        rows["fair"].append({"sharing": policy} | _fairness(captures, device, policy, plan))
    for name in searches.NETWORKS:
        one = searches.trial(captures, device, name)
        for policy in sharing:
            tell(f"300 x {name}: {policy}")
            stays = searches.search(one, device, policy, plan)
            rows["search"].append({"network": name, "sharing": policy} | summary(stays))
    return {
        "bench": "sharing",
        "device": asdict(device),
        "workload": {
            "networks": list(networks),
            "seed": _SEED,
            "trace_jobs": salus_trace.JOBS,
            "trace_workloads": len(SALUS),
            "turn_s": _TURN_S,
            "length_s": salus_trace.LENGTH_S,
            **dict(zip(("mean_gap_s", "sigma", "trace_seed"), salus_trace.CHOSEN, strict=True)),
            "superres_host": searches.SUPERRES_HOST,
            "host_spread": searches.HOST_SPREAD,
        },
    } | rows


def _plan(made: Made, jobs: Sequence[Any], device: DeviceSpec, sharing: str) -> tuple[SharedPlan, ...]:
    return plan_shared(jobs, device, sharing, made)


def _submission(
    job: Subject, *, at_s: float, seconds: float | None = None, iterations: int = 0
) -> Submission:
    """seconds: of its ops alone, instead of iterations."""
    if seconds is not None:
        iterations = max(1, round(seconds * _SECOND / job.eager_ns))
    return Submission(
        graph=job.graph, latencies_ns=job.latencies_ns, at_ns=int(at_s * _SECOND), iterations=iterations
    )


def _together(jobs: Sequence[Subject], share: float, sharing: str, device: DeviceSpec) -> dict[str, Any]:
    """Return the makespan over serial, and the aggregate peak over the sum of the eager ones."""
    eager_nbytes = sum(job.eager_peak_nbytes for job in jobs)
    within = replace(device, memory_nbytes=int(share * eager_nbytes))
    made: Made = {}
    held: list[int] = []

    def plan(requests: Sequence[Any], spec: DeviceSpec, policy: str) -> tuple[SharedPlan, ...]:
        plans = plan_shared(requests, spec, policy, made)
        held.append(needed_nbytes(plan.share for plan in plans))
        lanes.append(len({plan.share.lane for plan in plans}))
        return plans

    lanes: list[int] = []
    submissions = [_submission(job, at_s=0, iterations=_ITERATIONS) for job in jobs]
    try:
        stays = simulate(submissions, within, sharing, plan)
    except DoesNotFit as error:
        return {"refused": error.message}
    serial_ns = _ITERATIONS * sum(job.eager_ns for job in jobs)
    return {
        "peak": round(max(held) / eager_nbytes, 4),
        "makespan": round(max(stay.done_ns for stay in stays) / serial_ns, 4),
        "lanes": lanes[0],
    }


def _trace(captures: Captures, device: DeviceSpec) -> list[Submission]:
    drawn = salus_trace.draw(tuple(SALUS))
    subjects = {name: training(captures, device, name) for name in sorted({job.name for job in drawn})}
    return [
        replace(
            _submission(subjects[job.name], at_s=job.at_s, seconds=job.length_s),
            iterations_a_turn=math.ceil(_TURN_S * _SECOND / subjects[job.name].eager_ns),
        )
        for job in drawn
    ]


def _fairness(captures: Captures, device: DeviceSpec, sharing: str, plan: PlanShared) -> dict[str, Any]:
    """Return each job's pace while one, two and three jobs are there, over that of one alone."""
    job = training(captures, device, "inception3_50")
    # The later it comes, the earlier it goes.
    submissions = [
        _submission(job, at_s=n * _FAIR_APART_S, seconds=(_FAIR_S - n * _FAIR_APART_S) / _FAIR_JOBS)
        for n in range(_FAIR_JOBS)
    ]
    stays = simulate(submissions, device, sharing, plan)
    phases = []
    for present in range(1, _FAIR_JOBS + 1):
        begin_ns, end_ns = (present - 1) * _FAIR_APART_S * _SECOND, present * _FAIR_APART_S * _SECOND
        alone = (end_ns - begin_ns) / job.eager_ns
        phases.append(
            [round(_iterations_between(stay, begin_ns, end_ns) / alone, 3) for stay in stays[:present]]
        )
    return {"phases": phases}


def _iterations_between(stay: Stay, begin_ns: float, end_ns: float) -> int:
    before = max((done for at_ns, done in stay.turns if at_ns <= begin_ns), default=0)
    return max((done for at_ns, done in stay.turns if at_ns <= end_ns), default=0) - before
