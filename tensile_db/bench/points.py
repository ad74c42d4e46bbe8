"""One policy's plan of one job, as a point among memory and time.

    MSR = (VMP - EMP) / VMP     VMP, EMP: the peak in eager PyTorch (`vanilla`), and by the plan
    EOR = ETC / VTC             VTC, ETC: the time of an iteration in eager PyTorch, and by the plan
    CBR = MSR / EOR

All are simulated, on the same device.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensile_db.errors import DoesNotFit, InvalidRequest
from tensile_db.graph import StepGraph
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes, time_of_ops_ns
from tensile_db.scheduler.clocks import check_clock
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import SPLITTING, UNBUDGETED, vanilla
from tensile_db.scheduler.request import JobPlan, JobRequest

#: More than any job here holds.
AMPLE_NBYTES = 2**50
#: What is tried around the best of the tenths, as shares of eager's peak.
_NEIGHBOURS = (-0.08, -0.06, -0.04, -0.02, 0.02, 0.04, 0.06, 0.08)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A job on a device, and what eager PyTorch makes of it."""

    graph: StepGraph
    #: By op id, ns.
    latencies_ns: tuple[int, ...]
    device: DeviceSpec
    eager_peak_nbytes: int
    eager_ns: int
    least_nbytes: int

    @property
    def facts(self) -> dict[str, int]:
        """What a results file says of it."""
        return {
            "ops": len(self.graph.ops),
            "eager_peak_nbytes": self.eager_peak_nbytes,
            "eager_ns": self.eager_ns,
            "least_nbytes": self.least_nbytes,
        }


def subject(graph: StepGraph, device: DeviceSpec) -> Subject:
    """Return the job with the roofline's latencies.  The device's memory does not matter.

    Raises InvalidRequest where the device is slower than clocks go far.
    """
    latencies_ns = predict_latencies_ns(graph, device)
    check_clock(graph, latencies_ns, device)
    return Subject(
        graph=graph,
        latencies_ns=latencies_ns,
        device=device,
        eager_peak_nbytes=vanilla.peak_nbytes(graph),
        eager_ns=time_of_ops_ns(latencies_ns),
        least_nbytes=lower_bound_peak_nbytes(graph),
    )


def plan_one(
    job: Subject,
    policy: str,
    budget_nbytes: int | None,
    *,
    splits_by_need: bool = False,
    at_once: bool = False,
) -> JobPlan:
    """Plan the job for a budget, or for as much memory as it likes.

    splits_by_need, at_once: as of a JobRequest.

    Raises DoesNotFit, and InvalidRequest where the policy cannot plan such a graph.
    """
    ample = replace(job.device, memory_nbytes=budget_nbytes or AMPLE_NBYTES)
    request = JobRequest(
        job_id=1,
        graph=job.graph,
        latencies_ns=job.latencies_ns,
        policy=policy,
        splits_by_need=splits_by_need,
        at_once=at_once,
    )
    (made,) = plan_jobs([request], ample)
    return made


def point(job: Subject, policy: str, budget_nbytes: int | None) -> dict[str, Any]:
    """Return what `plan_one` makes, or why it makes nothing, for a results file."""
    begin_s = time.perf_counter()
    entry: dict[str, Any] = {"budget_nbytes": budget_nbytes}
    if budget_nbytes is not None:
        entry["share"] = round(budget_nbytes / job.eager_peak_nbytes, 4)
    try:
        made = plan_one(job, policy, budget_nbytes)
    except DoesNotFit as error:
        return entry | {"refused": error.message, "needed_nbytes": error.needed_nbytes}
    except InvalidRequest as error:
        return entry | {"refused": error.message}
    return (
        entry
        | rates(made.prediction.peak_nbytes, job.eager_peak_nbytes, made.prediction.time_ns, job.eager_ns)
        | {
            "guaranteed_peak_nbytes": made.prediction.guaranteed_peak_nbytes,
            "planning_s": round(time.perf_counter() - begin_s, 2),
        }
    )


def rates(peak_nbytes: int, eager_peak_nbytes: int, time_ns: int, eager_ns: int) -> dict[str, Any]:
    """Return a point's figures."""
    msr = (eager_peak_nbytes - peak_nbytes) / eager_peak_nbytes
    eor = time_ns / eager_ns
    return {
        "peak_nbytes": peak_nbytes,
        "time_ns": time_ns,
        "msr": round(msr, 4),
        "eor": round(eor, 4),
        "cbr": round(msr / eor, 4),
    }


def sweep(job: Subject, policy: str, shares: Sequence[float]) -> list[dict[str, Any]]:
    """Return a policy's points: one for each budget that whole ops can do with, and one for the least.

    A policy that splits ops is asked for those below that, too, until it refuses one.
    shares: of eager's peak.
    """
    if policy in UNBUDGETED:
        return [point(job, policy, None)]
    budgets = [int(share * job.eager_peak_nbytes) for share in sorted(shares, reverse=True)]
    of_whole_ops = [nbytes for nbytes in budgets if nbytes > job.least_nbytes]
    points = [point(job, policy, nbytes) for nbytes in [*of_whole_ops, job.least_nbytes]]
    # A policy may need more than the graph's own bound, and says how much.
    needed = points[-1].get("needed_nbytes")
    if needed is not None:
        return [*points, point(job, policy, needed)]
    for nbytes in budgets:
        if nbytes < job.least_nbytes and policy in SPLITTING and "refused" not in points[-1]:
            points.append(point(job, policy, nbytes))
    return points


def with_neighbours(job: Subject, policy: str, points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a policy's points and more around that of the best CBR, largest budget first."""
    chosen = best(points)
    if chosen is None or chosen["budget_nbytes"] is None:
        return list(points)
    share = chosen["budget_nbytes"] / job.eager_peak_nbytes
    budgets = [int((share + step) * job.eager_peak_nbytes) for step in _NEIGHBOURS]
    whole_nbytes = 0 if policy in SPLITTING else job.least_nbytes
    least_nbytes = max(whole_nbytes, *(entry.get("needed_nbytes", 0) for entry in points))
    # A share that was asked for is there already, but for what multiplying has rounded.
    there = [entry["budget_nbytes"] for entry in points]
    more = [
        point(job, policy, nbytes)
        for nbytes in budgets
        if least_nbytes < nbytes < job.eager_peak_nbytes and all(abs(nbytes - each) > 1 for each in there)
    ]
    return sorted([*points, *more], key=lambda entry: -entry["budget_nbytes"])


def best(points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the point of the best CBR."""
    made = [entry for entry in points if "cbr" in entry]
    return max(made, key=lambda entry: entry["cbr"], default=None)


def eor_at(points: Sequence[dict[str, Any]], msr: float) -> float | None:
    """Return the least EOR of the points that save at least so much."""
    eors = [entry["eor"] for entry in points if entry.get("msr", -1.0) >= msr]
    return min(eors, default=None)
