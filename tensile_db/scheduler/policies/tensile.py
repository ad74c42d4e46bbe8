"""TENSILE: all jobs of a device planned together, tensor by tensor, across iterations.

Source: TENSILE section IV, algorithms 1 to 3.  Activity analysis first; then, as long as it helps, the
largest tensor at the peak of any job is swapped; then, while the jobs exceed the memory, the recomputation of
the largest MSPS.
Differs:
- One tensor is swapped between two peak analyses; algorithm 2 goes through all tensors of the peak at once.
- A job's max swapping rate binds only while other jobs run beside it; the paper sets it to 100 % for a single
  job.
- Where swaps that hide and recomputation do not meet the memory, passive swaps are planned, in two ways, of
  which the faster counts (`choosing/last_resort.py`); the paper swaps passively at run time.
- Waits guarantee the peak whatever the latencies (`settling/assemble.py`); the paper's peak is a prediction.
- See also `choosing/swap.py`, `choosing/recompute.py` and `timeline.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes, time_of_ops_ns
from tensile_db.scheduler.choosing.last_resort import within_budget
from tensile_db.scheduler.choosing.recompute import Recomputations, schedule_recomputation
from tensile_db.scheduler.choosing.swap import schedule_swap
from tensile_db.scheduler.plan import DeviceSpec, Plan
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble, await_later, return_earlier
from tensile_db.scheduler.settling.follow import follow_timeline
from tensile_db.scheduler.shares import check_bounds, limit_of, share
from tensile_db.scheduler.timeline import fastest, simulate_settled

_HINT = "The policy tensile plans whole ops: use the policy auto, which splits them, or smaller batches."
#: Algorithm 3, line 4: give up once more than this many swaps bring less than this share of the peak, on
#: average over the last ones.
STOP_AFTER_SWAPS = 100
STOP_WINDOW = 3
STOP_REDUCTION = 0.0005
#: Recomputations keep what they read.  Below so many times the bound that may leave no room for ops; a plan
#: then has none of them, and what they take says nothing about its time.
_RECOMPUTATIONS_FIT = 2


@dataclass(slots=True)
class _Job:
    request: JobRequest
    residency: Residency
    link: Link
    recomputations: Recomputations
    swapped: int = 0
    failed: set[tuple[TensorId, int]] = field(default_factory=set)
    exhausted: bool = False
    #: Relative reductions of this job's peak by its last swaps.
    reductions: list[float] = field(default_factory=list)


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan jobs that share a device so that their guaranteed peaks together fit.

    Raises DoesNotFit, with the least memory that would do, where even passive swaps do not suffice.
    """
    limits = [limit_of(job, memory_nbytes) for job in jobs]
    graphs = [job.graph for job in jobs]
    check_bounds(graphs, limits, memory_nbytes, hint=_HINT)
    planned = [_new_job(job, device, len(jobs)) for job in jobs]
    _swap(planned)
    _recompute(planned, limits, memory_nbytes)
    budgets = share(graphs, [job.residency.peak_nbytes for job in planned], limits, memory_nbytes)
    return tuple(
        _finish(job, device, len(jobs), budget) for job, budget in zip(planned, budgets, strict=True)
    )


def plan_if_faster(
    request: JobRequest, device: DeviceSpec, budget_nbytes: int, slowest_ns: int, *, both: bool
) -> Plan | None:
    """Plan one job alone; None as soon as its recomputations make its iteration take longer than that.

    both: as of `within_budget`.
    """
    job = _new_job(request, device, 1)
    _swap([job])
    spare_ns = math.inf
    if budget_nbytes >= _RECOMPUTATIONS_FIT * lower_bound_peak_nbytes(request.graph):
        spare_ns = slowest_ns - time_of_ops_ns(request.latencies_ns)
    if not _recompute([job], [budget_nbytes], budget_nbytes, spare_ns):
        return None
    return _finish(job, device, 1, budget_nbytes, both=both)


def _new_job(request: JobRequest, device: DeviceSpec, jobs: int) -> _Job:
    residency = Residency(request.graph, request.latencies_ns)
    return _Job(
        request=request,
        residency=residency,
        link=Link(device, jobs),
        recomputations=Recomputations(residency),
    )


def _swap(jobs: Sequence[_Job]) -> None:
    """Swap the largest tensor at the peak of any job, until none can be swapped or it no longer pays."""
    swaps = 0
    while candidates := [job for job in jobs if not job.exhausted]:
        allowed = [job for job in candidates if _may_swap(job, jobs)]
        if not allowed:
            return
        job = max(allowed, key=lambda candidate: (_largest_at_peak(candidate), -candidate.request.job_id))
        before = job.residency.peak_nbytes
        if schedule_swap(job.residency, job.link, job.failed) is None:
            job.exhausted = True
            continue
        swaps += 1
        job.swapped += 1
        job.reductions.append(1 - job.residency.peak_nbytes / before)
        recent = job.reductions[-STOP_WINDOW:]
        if swaps > STOP_AFTER_SWAPS and sum(recent) / len(recent) < STOP_REDUCTION:
            job.exhausted = True


def _may_swap(job: _Job, jobs: Sequence[_Job]) -> bool:
    """Whether one more swap keeps the job within its max swapping rate of all swaps, rounded up."""
    total = sum(other.swapped for other in jobs) + 1
    return len(jobs) == 1 or job.swapped + 1 <= math.ceil(job.request.max_swapping_rate * total)


def _largest_at_peak(job: _Job) -> int:
    """Return the size of the largest tensor at the job's peak that has not failed there."""
    residency = job.residency
    peak = residency.peak_position
    for tensor in residency.held_at(peak):
        if (tensor, peak) not in job.failed:
            return residency.graph.tensors[tensor].nbytes
    return 0


def _recompute(
    jobs: Sequence[_Job], limits: Sequence[int], memory_nbytes: int, most_ns: float = math.inf
) -> bool:
    """Recompute what saves most memory per second, while the jobs exceed their memory.

    Returns False once all that takes longer than most_ns.
    """
    taken_ns = 0
    while taken_ns <= most_ns:
        short = sum(job.residency.peak_nbytes for job in jobs) > memory_nbytes
        found = [
            (candidate, job)
            for job, limit in zip(jobs, limits, strict=True)
            if (short or job.residency.peak_nbytes > limit)
            and (candidate := job.recomputations.find()) is not None
        ]
        if not found:
            return True
        chosen, job = max(
            found, key=lambda pair: (pair[0].msps, -pair[1].request.job_id, -pair[0].gap.tensor)
        )
        schedule_recomputation(job.residency, chosen)
        taken_ns += chosen.time_ns
    return False


def _finish(job: _Job, device: DeviceSpec, jobs: int, budget_nbytes: int, *, both: bool = True) -> Plan:
    """Return the fastest plan of those within the budget; both: as of `within_budget`."""
    request = job.request
    met = within_budget(job.residency, job.link, budget_nbytes, both=both)
    if not met:
        # Recomputations keep their inputs; without them passive swaps reach the bound.
        job = _new_job(request, device, jobs)
        met = within_budget(job.residency, job.link, budget_nbytes, both=both)
        assert met, "passive swaps reach every budget above the bound"
    plans = [_settled(request, residency, job.link, device, budget_nbytes) for residency in met]
    return fastest(request.graph, request.latencies_ns, plans, device)


def _settled(
    request: JobRequest, residency: Residency, link: Link, device: DeviceSpec, budget_nbytes: int
) -> Plan:
    """Guarantee what is predicted; then wait for departures as late as that allows."""
    return_earlier(residency, link, budget_nbytes)
    graph, latencies_ns = request.graph, request.latencies_ns
    _, timeline = simulate_settled(graph, latencies_ns, assemble(residency, "tensile"), device)
    follow_timeline(residency, timeline, duplex=device.duplex)
    # Waiting later must not raise the peak: what a program may hold is what it is predicted to hold.
    await_later(residency, max(timeline.peak_nbytes, residency.peak_nbytes))
    return assemble(residency, "tensile")
