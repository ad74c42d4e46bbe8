"""Plans for less memory than jobs are granted, where their iterations can be replayed then.

What is taken down needs more room than its plan's peak (`headroom.py`).  A job that has no more memory than
its plan needs would be run op by op, and its device would wait for the host.  A plan for a little less stalls
or recomputes a little more, and leaves the room.  It is one of the same splits, for a job's results are its
own: they depend neither on what is left of the device nor on whether that replays.

Source: ours.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing.headroom import (
    MOST_RECORDINGS,
    held_nbytes,
    is_taken_down,
    with_headroom,
)
from tensile_db.scheduler.sharing.recorded_memory import fixed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan, Within
from tensile_db.scheduler.sharing.shared_plans import plan_granted, plan_shared

#: Plans looked at for less memory.
_TRIES = 4
#: Of the room that would just do, what the next plan is made for: other plans leave other holes.
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
    """Return plans and shares as `plan_shared` does, on a device that replays with room for it, where it can.

    A job alone in its lane whose limit or device leaves no room gets a plan for less memory, if iterations by
    that are expected to take less time than op by op.
    Raises as plan_shared does.
    """
    made = plan_shared(jobs, device, sharing, in_force=in_force, at_once=at_once)
    if not device.replays:
        return made
    plans = list(with_headroom(made, jobs, device))
    alone = _alone(plans, jobs)
    short = [place for place in alone if not _has_room(plans[place], jobs[place])]
    # Each that is looked for keeps whoever waits for the answer.
    for place in short[: max(0, MOST_RECORDINGS - (len(alone) - len(short)))]:
        plan, job = plans[place], replace(jobs[place], hurried=jobs[place].hurried or len(jobs) > 1)
        tighter = _tighter(plan, job, at_once=at_once)
        if tighter is not None and tighter.job_plan.prediction.time_ns < _op_by_op_ns(plan):
            plans[place] = tighter
    return tuple(plans)


def _alone(plans: Sequence[SharedPlan], jobs: Sequence[JobRequest]) -> list[int]:
    """Return the places of jobs that train alone in their lanes."""
    in_lane = Counter(plan.share.lane for plan in plans)
    return [
        place
        for place, (plan, job) in enumerate(zip(plans, jobs, strict=True))
        if in_lane[plan.share.lane] == 1 and is_taken_down(job)
    ]


def _op_by_op_ns(plan: SharedPlan) -> int:
    """Return the time of an iteration whose instructions the host hands over one by one."""
    handed_over_ns = _HAND_OVER_NS * len(plan.job_plan.program.instructions)
    return max(plan.job_plan.prediction.time_ns, handed_over_ns)


def _tighter(plan: SharedPlan, job: JobRequest, *, at_once: bool) -> SharedPlan | None:
    """Return a plan that leaves room to be replayed in the share of this one, or None where none was found.

    plan: with headroom.
    """
    found = _tighter_at_once(plan, job)
    if found is None and job.former is not None:
        # What begins with other choices may leave other holes.
        found = _tighter_at_once(plan, replace(job, former=None))
    if found is None or at_once:
        return found
    thorough = _within(plan, job, found.job_plan.budget_nbytes)
    return found if thorough is None or _held_nbytes(thorough, job) > plan.share.budget_nbytes else thorough


def _tighter_at_once(plan: SharedPlan, job: JobRequest) -> SharedPlan | None:
    room_nbytes = plan.share.budget_nbytes
    budget_nbytes = _tighter_nbytes(plan, job, room_nbytes)
    if job.former is not None and job.former.guaranteed_peak_nbytes < plan.job_plan.budget_nbytes:
        # It may be such a plan, and stay.
        budget_nbytes = job.former.guaranteed_peak_nbytes
    for _ in range(_TRIES):
        made = _within(plan, replace(job, at_once=True, in_haste=False), budget_nbytes)
        if made is None or _held_nbytes(made, job) <= room_nbytes:
            return made
        budget_nbytes = _tighter_nbytes(made, job, room_nbytes)
    return None


def _within(plan: SharedPlan, job: JobRequest, budget_nbytes: int) -> SharedPlan | None:
    """Return a plan like this one within less memory, with the same share.

    What a recording holds is estimated, and may be more.
    None where ops need more than budget_nbytes, or others would be split.
    """
    grant = replace(plan.within.grant, budget_nbytes=budget_nbytes)
    try:
        made = plan_granted(job, grant, plan.within.device, {})
    except DoesNotFit:
        return None
    if made.job_plan.plan.splits != plan.job_plan.plan.splits:
        return None
    beyond_nbytes = max(0, plan.share.budget_nbytes - made.share.budget_nbytes)
    share = replace(made.share, ephemeral_nbytes=made.share.ephemeral_nbytes + beyond_nbytes)
    return replace(made, share=share, within=plan.within)


def _has_room(plan: SharedPlan, job: JobRequest) -> bool:
    return _held_nbytes(plan, job) <= plan.share.budget_nbytes


def _held_nbytes(plan: SharedPlan, job: JobRequest) -> int:
    graph, room_nbytes = planned_graph(job.graph, plan.job_plan.plan), plan.share.budget_nbytes
    return held_nbytes(graph, plan.job_plan.program, plan.within.device, room_nbytes)


def _tighter_nbytes(plan: SharedPlan, job: JobRequest, room_nbytes: int) -> int:
    """Return the memory for which a plan would do with the room, were its holes the same part of it."""
    fixed = fixed_nbytes(planned_graph(job.graph, plan.job_plan.plan))
    part = (room_nbytes - fixed) / (_held_nbytes(plan, job) - fixed)
    return max(0, int(_CAUTION * plan.job_plan.budget_nbytes * part))
