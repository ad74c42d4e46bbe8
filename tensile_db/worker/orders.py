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
    ImprovementMade,
    JobId,
    PlanInfeasible,
    PlanningFailed,
    PlanningId,
    PlansMade,
    Reason,
)
from tensile_db.worker.planning.improving_process import Better, ImprovementAnswer
from tensile_db.worker.planning.planning_process import Answer, Broken, Infeasible, Planned

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
    were made for now.  Where the answer leaves it out, nobody has looked at it.
    """
    asked = {request.job_id: request for request in requests}
    left_out = asked.keys() - {plan.job_id for plan in answer.plans}
    improvable = [job for job in map(JobId, sorted(left_out)) if _is_quick(held.get(job))]
    orders: dict[JobId, PlanOrder] = {}
    for plan, share, within in zip(answer.plans, answer.shares, answer.within, strict=True):
        job, request = JobId(plan.job_id), asked[plan.job_id]
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
    event = PlansMade(
        planning=planning,
        shares=shares,
        improvable=tuple(improvable),
        quick_lanes=any(within.quick for within in answer.within),
    )
    return event, orders


def better_orders(
    planning: PlanningId,
    requests: Sequence[JobRequest],
    answer: ImprovementAnswer | Answer,
    held: Mapping[JobId, Held],
) -> tuple[ImprovementMade, dict[JobId, PlanOrder]]:
    """Return the event of a better plan, or better lanes, and the orders; none: there is nothing better.

    held: the jobs that were asked about, whose plans in force are what they were then.
    """
    if isinstance(answer, Planned):
        reasons = dict.fromkeys(held, Reason.IMPROVEMENT)
        made, orders = plans_made(planning, requests, reasons, answer, held)
        improvable = made.improvable
    else:
        orders, improvable = {}, ()
        if len(requests) == 1 and not isinstance(answer, Infeasible):
            ((job, known),) = held.items()
            order = better_order(planning, known, requests[0].latencies_ns, answer)
            orders = {} if order is None else {job: order}
        else:
            log.error("looking for better lanes failed: %s", answer)
    shares = tuple((job, order.share) for job, order in orders.items())
    return ImprovementMade(planning=planning, shares=shares, improvable=improvable), orders


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


def _is_quick(held: Held | None) -> bool:
    # Who is left out has a plan, unless it ended while the others were planned.
    return held is not None and held.order is not None and held.order.job_plan.quick


def _is_same(order: PlanOrder, plan: JobPlan, share: Share) -> bool:
    return order.share.holds_as_much_as(share) and order.job_plan.plan == plan.plan
