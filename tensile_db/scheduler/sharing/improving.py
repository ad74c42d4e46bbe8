"""A better plan for a job that runs, within the memory that it was granted: looked for while nobody waits.

Plans that others wait for are made at once, and may be slower than need be (docs/planner/planning_again.md).

Source: ours.
"""

from dataclasses import dataclass, replace

from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import DeviceSpec, Plan, has_choices_of
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing.headroom import is_recordable, is_taken_down
from tensile_db.scheduler.sharing.share import Share
from tensile_db.scheduler.sharing.shared_plan import SharedPlan, Within, share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AsGood:
    """There is no better plan than the one in force."""

    #: What that takes, with the latencies for which no better one was found; as of a Former.
    eor: float
    #: The budget within which none was found.
    within_nbytes: int


def improved(job: JobRequest, within: Within, share: Share) -> SharedPlan | AsGood:
    """Return a plan that is worth changing to, with its share, if there is one.

    job: with the plan in force; within: what that was made for; share: what the job has with it.  The new
    share keeps to the grant, but may be divided otherwise: whether it fits beside the others' is for the
    caller to see.  What is replayed stays so.  Takes as long as a first plan does, with a search.
    """
    former = job.former
    assert former is not None, "a plan is in force"
    budget_nbytes = within.grant.budget_nbytes
    is_replayed = (
        within.device.replays and is_taken_down(job) and _has_room(job, former.plan, share, within.device)
    )
    if is_replayed:
        # It may have been made for less than was granted, so that there is room to replay in.
        budget_nbytes = min(budget_nbytes, former.guaranteed_peak_nbytes)
    (made,) = plan_jobs([replace(job, improving=True)], within.device, budget_nbytes)
    if has_choices_of(made.plan, former.plan):
        return AsGood(eor=made.prediction.eor, within_nbytes=budget_nbytes)
    if is_replayed and not _has_room(job, made.plan, share, within.device):
        # Op by op, it would take longer.
        return AsGood(eor=former.eor, within_nbytes=budget_nbytes)
    made = replace(made, looked_within_nbytes=budget_nbytes)
    found = replace(share_of(made, within.grant), recorded_nbytes=share.recorded_nbytes)
    # What it has beyond its plan, to be replayed in, stays its own.
    beyond_nbytes = share.budget_nbytes - found.budget_nbytes
    if within.device.replays and beyond_nbytes > 0:
        found = replace(found, ephemeral_nbytes=found.ephemeral_nbytes + beyond_nbytes)
    return SharedPlan(job_plan=made, share=found, within=within)


def _has_room(job: JobRequest, plan: Plan, share: Share, device: DeviceSpec) -> bool:
    """Whether the job's iterations by a plan can be replayed in its share."""
    graph = planned_graph(job.graph, plan)
    return is_recordable(share, graph, lower(graph, plan), device)
