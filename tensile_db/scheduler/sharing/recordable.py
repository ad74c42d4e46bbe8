"""Plans for less memory than jobs may have, where their iterations can be replayed then.

What is taken down needs more room than its plan's peak (`headroom.py`).  A job that has no more memory than
its plan needs would be run op by op, and its device would wait for the host.  A plan for a little less stalls
or recomputes a little more, and leaves the room.

Source: ours.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing.headroom import is_recordable, is_taken_down, recorded_nbytes, with_headroom
from tensile_db.scheduler.sharing.shared_plan import SharedPlan, Within
from tensile_db.scheduler.sharing.shared_plans import plan_shared

#: Plans looked at for less memory.
_TRIES = 4
#: Of the room that would just do, what the next plan is made for: other plans leave other gaps.
_CAUTION = 0.98
#: What the host takes to hand an instruction over: 36 ms for the 1,435 of a ResNet-50, beside an H100.
_HAND_OVER_NS = 25_000


def plan_recordable(
    jobs: Sequence[JobRequest],
    device: DeviceSpec,
    sharing: str = "auto",
    in_force: Sequence[Within | None] = (),
    *,
    at_once: bool = False,
) -> tuple[SharedPlan, ...]:
    """Return plans and shares as `plan_shared` does, with room to replay in, as far as there can be.

    device: one that replays.  A job alone in its lane whose limit or device leaves no room gets a plan for
    less memory, if iterations by that are expected to take less time than op by op.
    Raises as plan_shared does.
    """
    made = plan_shared(jobs, device, sharing, in_force=in_force, at_once=at_once)
    plans = with_headroom(made, jobs, device)
    found = _tighter(plans, jobs, device, sharing)
    if found is None:
        return plans
    limited, tried = found
    if not at_once:
        made = plan_shared(limited, device, sharing, in_force=in_force)
        thorough = with_headroom(made, jobs, device)
        # Its gaps may be others.
        tried = tried if _short(thorough, jobs) else thorough
    return tried if _time_ns(tried, jobs) < _time_ns(plans, jobs) else plans


def _tighter(
    plans: tuple[SharedPlan, ...], jobs: Sequence[JobRequest], device: DeviceSpec, sharing: str
) -> tuple[Sequence[JobRequest], tuple[SharedPlan, ...]] | None:
    """Return the jobs with limits for which plans, made at once, leave room to replay all, and these plans.

    plans: with headroom.  None where that is so already, or no such limits were found.
    """
    limited = list(jobs)
    for _ in range(_TRIES):
        short = _short(plans, jobs)
        if not short:
            break
        for place in short:
            tighter_nbytes = _tighter_nbytes(plans[place], jobs[place])
            # Its splits were found for what it may have, and looking for others takes long.
            limited[place] = replace(jobs[place], memory_limit_nbytes=tighter_nbytes, splits_by_need=True)
        try:
            made = plan_shared(limited, device, sharing, at_once=True)
        except DoesNotFit:
            return None
        plans = with_headroom(made, jobs, device)
    return None if limited == list(jobs) or _short(plans, jobs) else (limited, plans)


def _short(plans: Sequence[SharedPlan], jobs: Sequence[JobRequest]) -> list[int]:
    """Return the places of jobs that might be replayed, and have no room for it."""
    trained = _to_be_replayed(plans, jobs)
    return [place for place in trained if not is_recordable(plans[place], jobs[place])]


def _to_be_replayed(plans: Sequence[SharedPlan], jobs: Sequence[JobRequest]) -> list[int]:
    """Return the places of jobs that train alone in their lanes."""
    in_lane = Counter(plan.share.lane for plan in plans)
    return [
        place
        for place, (plan, job) in enumerate(zip(plans, jobs, strict=True))
        if in_lane[plan.share.lane] == 1 and is_taken_down(job)
    ]


def _tighter_nbytes(plan: SharedPlan, job: JobRequest) -> int:
    """Return the memory for which a plan would leave the room, were its gaps the same part of it."""
    graph, program = planned_graph(job.graph, plan.job_plan.plan), plan.job_plan.program
    held_nbytes = program.resident_nbytes + recorded_nbytes(graph, program)
    return int(_CAUTION * plan.job_plan.budget_nbytes * plan.share.budget_nbytes / held_nbytes)


def _time_ns(plans: Sequence[SharedPlan], jobs: Sequence[JobRequest]) -> int:
    replayed = set(_to_be_replayed(plans, jobs)) - set(_short(plans, jobs))
    return sum(
        plan.job_plan.prediction.time_ns
        if place in replayed
        else max(plan.job_plan.prediction.time_ns, _HAND_OVER_NS * len(plan.job_plan.program.instructions))
        for place, plan in enumerate(plans)
    )
