"""`bench sharing`: many jobs on one device, by the worker's own decisions.

    together    n equal jobs that come at once, in ever less memory: how long until all are done
    trace       100 jobs of Salus' networks that come over half an hour
    fair        three equal jobs that come 15 s apart, and go in the reverse order
    search      300 equal jobs that come at once

Source: Salus table 2, figures 8, 11 and 12, section 5.
Differs: Salus does not publish its trace.  Here networks and batch sizes are drawn evenly from its table 3,
gaps are exponential and lengths lognormal around its mean job, which FIFO's row of its table 2 tells.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from tensile_db.bench.captures import Captures
from tensile_db.bench.points import Subject, subject
from tensile_db.bench.queueing.simulation import PlanShared, Stay, Submission, simulate
from tensile_db.bench.salus_workloads import SALUS
from tensile_db.bench.workloads import workload
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plans import Made, SharedPlan, plan_shared

#: Jobs, and the memory of the device as shares of the sum of their eager peaks.
TOGETHER = {2: (0.7, 0.45, 0.35), 4: (0.5, 0.28, 0.25, 0.2), 8: (0.4, 0.2, 0.15, 0.125)}
_ITERATIONS = 40
_SEED = 1
_TRACE_JOBS, _TRACE_GAP_S, _TRACE_MEAN_S, _TRACE_SIGMA = 100, 18.0, 182.0, 1.5
_FAIR_JOBS, _FAIR_APART_S, _FAIR_S = 3, 15.0, 90.0
_SEARCH_JOBS, _SEARCH_ITERATIONS = 300, 100
#: A job of superres is long on the host: for each second on the device, so many between iterations.
_SUPERRES_HOST = 1.5
_MAX_JOBS = 16
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
    made: Made = {}
    plan = partial(_plan, made)
    together = []
    for name in networks:
        job = subject(captures.graph(workload(name), 16, "adam"), device)
        for count, shares in TOGETHER.items():
            for share in shares:
                for policy in ("auto", "pack"):
                    tell(f"{count} x {name} in {share:.0%}: {policy}")
                    together.append(
                        {"network": name, "jobs": count, "share": share, "sharing": policy}
                        | _together([job] * count, share, policy, device)
                    )
    trace = _trace(captures, device)
    rows: dict[str, Any] = {"together": together, "trace": [], "fair": [], "search": []}
    for policy in sharing:
        tell(f"trace: {policy}")
        rows["trace"].append({"sharing": policy} | _summary(simulate(trace, device, policy, plan)))
    for policy in sharing:
        tell(f"three equal jobs: {policy}")
        rows["fair"].append({"sharing": policy} | _fairness(captures, device, policy, plan))
    for name, batch in (("resnet50", 50), ("superres", 128)):
        for policy in sharing:
            tell(f"300 x {name}: {policy}")
            stays = _search(captures, device, name, batch, policy, plan)
            rows["search"].append({"network": f"{name}_{batch}", "sharing": policy} | _summary(stays))
    return {
        "bench": "sharing",
        "device": asdict(device),
        "workload": {
            "networks": list(networks),
            "seed": _SEED,
            "trace_jobs": _TRACE_JOBS,
            "mean_gap_s": _TRACE_GAP_S,
            "mean_length_s": _TRACE_MEAN_S,
            "sigma": _TRACE_SIGMA,
            "superres_host": _SUPERRES_HOST,
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
    rng = random.Random(_SEED)  # a trace, not a secret
    kinds = [(network, batch) for network, (_, batches) in SALUS.items() for batch in batches]
    subjects: dict[tuple[str, int], Subject] = {}
    at_s, submissions = 0.0, []
    for _ in range(_TRACE_JOBS):
        network, batch = rng.choice(kinds)
        if (network, batch) not in subjects:
            graph = captures.graph(SALUS[network][0], batch, "momentum")
            subjects[network, batch] = subject(graph, device)
        # A lognormal's mean is above its median by this factor.
        seconds = (
            rng.lognormvariate(0, _TRACE_SIGMA) * _TRACE_MEAN_S * 2.718281828 ** (-(_TRACE_SIGMA**2) / 2)
        )
        submissions.append(_submission(subjects[network, batch], at_s=at_s, seconds=seconds))
        at_s += rng.expovariate(1 / _TRACE_GAP_S)
    return submissions


def _fairness(captures: Captures, device: DeviceSpec, sharing: str, plan: PlanShared) -> dict[str, Any]:
    """Return each job's iterations a second while one, two and three jobs are there, over those of one alone."""
    job = subject(captures.graph(SALUS["inception3"][0], 50, "momentum"), device)
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


def _search(
    captures: Captures, device: DeviceSpec, network: str, batch: int, sharing: str, plan: PlanShared
) -> list[Stay]:
    job = subject(captures.graph(SALUS[network][0], batch, "momentum"), device)
    host_ns = int(_SUPERRES_HOST * job.eager_ns) if network == "superres" else 0
    one = replace(_submission(job, at_s=0, iterations=_SEARCH_ITERATIONS), host_ns=host_ns)
    return simulate([one] * _SEARCH_JOBS, device, sharing, plan, max_jobs=_MAX_JOBS)


def _summary(stays: Sequence[Stay]) -> dict[str, Any]:
    """Return makespan, mean queueing, mean and 95 % completion time, in s."""
    completions = sorted(stay.completion_ns for stay in stays)
    first_ns = min(stay.submission.at_ns for stay in stays)
    return {
        "makespan_s": round((max(stay.done_ns for stay in stays) - first_ns) / _SECOND, 1),
        "queueing_s": round(sum(stay.queueing_ns for stay in stays) / len(stays) / _SECOND, 1),
        "completion_s": round(sum(completions) / len(stays) / _SECOND, 1),
        "completion_95_s": round(completions[max(0, -(-95 * len(stays) // 100) - 1)] / _SECOND, 1),
    }
