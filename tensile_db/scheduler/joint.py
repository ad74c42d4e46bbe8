"""All jobs of a device, planned together: the memory scheduler's one entry point.

Jobs are planned policy by policy.  Those whose plans heed no budget take what they need; the others share
what is left.

Source: TENSILE sections III-D and IV-E.
"""

from collections.abc import Sequence

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes, time_of_ops_ns
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import DeviceSpec, Plan, Prediction, has_choices_of
from tensile_db.scheduler.policies import POLICIES, require_policy, vanilla
from tensile_db.scheduler.request import JobPlan, JobRequest, Timing
from tensile_db.scheduler.rewriting import as_rewritten, planned_graph
from tensile_db.scheduler.timeline import simulate, simulate_settled


def plan_jobs(
    jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int | None = None
) -> tuple[JobPlan, ...]:
    """Return a verified plan for each job, in the jobs' order; together they fit in so many bytes.

    memory_nbytes: what these jobs may have, default all of the device's memory.

    Raises DoesNotFit, with the least memory that would do, and UnknownName for a policy that is none.
    """
    for job in jobs:
        require_policy(job.policy)
    plans: dict[int, Plan] = {}
    if memory_nbytes is None:
        memory_nbytes = device.memory_nbytes
    # In the order of POLICIES, in which those come first whose plans' needs cannot be bargained with.
    waiting = list(jobs)
    for policy in POLICIES:
        group = [job for job in waiting if job.policy == policy]
        if not group:
            continue
        waiting = [job for job in waiting if job.policy != policy]
        made = POLICIES[policy](group, device, memory_nbytes)
        for job, plan in zip(group, made, strict=True):
            plans[job.job_id] = plan
            if waiting:
                memory_nbytes -= lower(planned_graph(job.graph, plan), plan).guaranteed_peak_nbytes
    return tuple(_job_plan(job, plans[job.job_id], device) for job in jobs)


def _job_plan(job: JobRequest, plan: Plan, device: DeviceSpec) -> JobPlan:
    planned = as_rewritten(job, plan.rewriting, device)
    settled, timeline = simulate_settled(planned.graph, planned.latencies_ns, plan, device)
    if settled != plan:
        # What it settled on may differ a little from what it does from then on, which a plan in force does.
        plan = plan if _is_in_force(job, plan, planned, device) else settled
        timeline = simulate(planned.graph, planned.latencies_ns, plan, device)
    program = lower(planned.graph, plan)
    prediction = Prediction(
        vanilla_peak_nbytes=vanilla.peak_nbytes(job.graph),
        peak_nbytes=timeline.peak_nbytes,
        guaranteed_peak_nbytes=program.guaranteed_peak_nbytes,
        vanilla_time_ns=time_of_ops_ns(job.latencies_ns),
        time_ns=timeline.period_ns,
        lower_bound_peak_nbytes=lower_bound_peak_nbytes(job.graph),
        # With codes, ops may take less than they were measured to without.
        lower_bound_time_ns=min(time_of_ops_ns(job.latencies_ns), time_of_ops_ns(planned.latencies_ns)),
    )
    former = job.former if job.former is not None and has_choices_of(plan, job.former.plan) else None
    return JobPlan(
        job_id=job.job_id,
        plan=plan,
        program=program,
        prediction=prediction,
        timeline=timeline,
        timing=Timing(latencies_ns=tuple(planned.latencies_ns), device=device, period_ns=timeline.period_ns),
        former_eor=None if former is None else former.eor,
        quick=plan.quick,
        looked_within_nbytes=0 if former is None else former.looked_within_nbytes,
    )


def _is_in_force(job: JobRequest, plan: Plan, planned: JobRequest, device: DeviceSpec) -> bool:
    """Whether it is the plan in force, for which nothing has changed; planned: the job as it rewrites it."""
    former = job.former
    return (
        former is not None
        and former.timing.is_of(planned.latencies_ns, device)
        and (former.plan.order, former.plan.events) == (plan.order, plan.events)
    )
