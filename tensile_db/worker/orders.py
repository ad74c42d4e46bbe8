"""What the planner's answers come to: events for the state machine, and orders for the jobs."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.sharing.improving import AsGood
from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.handover import Held
from tensile_db.worker.mailbox import Confirmation, PlanOrder
from tensile_db.worker.messages import (
    JobId,
    PlanInfeasible,
    PlanningFailed,
    PlanningId,
    PlansMade,
    Reason,
)
from tensile_db.worker.planning.improving_process import Better, ImprovementAnswer
from tensile_db.worker.planning.planning_process import Broken, Infeasible, Planned

log = logging.getLogger(__name__)


def no_plans(planning: PlanningId, answer: Infeasible | Broken) -> PlanInfeasible | PlanningFailed:
    """Return the event of an answer without plans."""
    match answer:
        case Infeasible():
            return PlanInfeasible(
                planning=planning,
                needed_nbytes=answer.needed_nbytes,
                budget_nbytes=answer.budget_nbytes,
                hint=answer.hint,
            )
        case Broken():
            if answer.hint is None:
                log.error("planning %s failed: %s", planning, answer.message)
            return PlanningFailed(planning=planning, message=answer.message, hint=answer.hint)
        case _:
            assert_never(answer)


def plans_made(
    planning: PlanningId,
    requests: Sequence[JobRequest],
    reasons: Mapping[JobId, Reason],
    answer: Planned,
    held: Mapping[JobId, Held],
) -> tuple[PlansMade, dict[JobId, PlanOrder]]:
    """Return the event of plans that were made, and the orders of jobs that get another plan or share.

    held: a job that keeps both is told that they hold for its new latencies, and its order says what they
    were made for now.
    """
    orders: dict[JobId, PlanOrder] = {}
    improvable = []
    made = zip(requests, answer.plans, answer.shares, answer.within, strict=True)
    for request, plan, share, within in made:
        job = JobId(request.job_id)
        if plan.quick:
            improvable.append(job)
        known = held.get(job)
        if known is not None and known.order is not None and _is_same(known.order, plan, share):
            known.mailbox.confirm(
                Confirmation(latencies_ns=request.latencies_ns, iterations=share.iterations)
            )
            known.order = replace(known.order, within=within)
            continue
        orders[job] = PlanOrder(
            planning=planning,
            job_plan=plan,
            share=share,
            within=within,
            reason=reasons[job],
            planning_ns=answer.planning_ns,
            latencies_ns=request.latencies_ns,
        )
    shares = tuple((job, order.share) for job, order in orders.items())
    return PlansMade(planning=planning, shares=shares, improvable=tuple(improvable)), orders


def better_order(
    planning: PlanningId, held: Held, latencies_ns: Sequence[int], answer: ImprovementAnswer
) -> PlanOrder | None:
    """Return the order of a plan that is better than the one in force, made from these latencies, in ns.

    held: whose plan in force is the one that was asked about.  That there is none better is known as long as
    it is in force.
    """
    order = held.order
    assert order is not None, "what is improved is a plan in force"
    match answer:
        case Better():
            # What it is within may have changed meanwhile, though plan and share have not.
            return replace(
                order,
                planning=planning,
                job_plan=answer.plan,
                share=replace(answer.share, iterations=order.within.grant.iterations),
                reason=Reason.IMPROVEMENT,
                planning_ns=answer.planning_ns,
                latencies_ns=latencies_ns,
            )
        case AsGood():
            seen = replace(
                order.job_plan, quick=False, former_eor=answer.eor, looked_within_nbytes=answer.within_nbytes
            )
        case Broken():
            log.error("looking for a better plan failed: %s", answer.message)
            seen = replace(order.job_plan, quick=False)
        case _:
            assert_never(answer)
    held.order = replace(order, job_plan=seen)
    return None


def _is_same(order: PlanOrder, plan: JobPlan, share: Share) -> bool:
    return order.share.holds_as_much_as(share) and order.job_plan.plan == plan.plan
