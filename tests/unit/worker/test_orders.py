"""What the answers of planner and improver come to: plans in force, and what is known of them."""

from dataclasses import replace

import pytest

from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tensile_db.worker.handover import Held
from tensile_db.worker.messages import JobId, PlanningId, Reason
from tensile_db.worker.orders import better_order, better_orders, plans_made
from tensile_db.worker.planning.improving_process import Better, PlanInForce, answer
from tensile_db.worker.planning.planning_process import Broken, Planned, Question
from tensile_db.worker.planning.planning_process import answer as plan
from tests.graphs.hand_made import chain, device_of

JOB = JobId(1)
GRAPH = chain(state_nbytes=300)
#: As little as any plan does with, and too much for a plan to make use of.
MEMORY = (320, 470)


class OneJob:
    """A job of a device, planned again and again as a worker does it."""

    def __init__(self, memory_nbytes: int) -> None:
        self.device = device_of(memory_nbytes)
        self.held = Held(row=None)
        self._asked = 0

    def plan(self, latency_ns: int) -> bool:
        """Return whether a better plan is to be looked for."""
        self._asked += 1
        request = self._request(latency_ns)
        in_force = [None if self.held.order is None else self.held.order.within]
        (plan,) = plan_shared([request], self.device, in_force=in_force)
        made = Planned(plans=(plan.job_plan,), shares=(plan.share,), within=(plan.within,), planning_ns=1)
        planning, held = PlanningId(self._asked), {JOB: self.held}
        event, orders = plans_made(planning, [request], {JOB: Reason.DRIFT}, made, held)
        self.held.order = orders.get(JOB, self.held.order)
        return bool(event.improvable)

    def improve(self, latency_ns: int) -> bool:
        """Return whether there was a better plan."""
        self._asked += 1
        order, request = self.held.order, self._request(latency_ns)
        found = answer(PlanInForce(request=request, within=order.within, share=order.share))
        better = better_order(PlanningId(self._asked), self.held, request.latencies_ns, found)
        self.held.order = better or self.held.order
        return better is not None

    def _request(self, latency_ns: int) -> JobRequest:
        former = None if self.held.order is None else self.held.order.job_plan.as_former
        latencies_ns = (latency_ns,) * len(GRAPH.ops)
        return JobRequest(job_id=JOB, graph=GRAPH, latencies_ns=latencies_ns, former=former)


@pytest.mark.slow
@pytest.mark.parametrize("memory_nbytes", MEMORY)
def test_where_no_better_plan_was_found_none_is_looked_for_after_the_next_drift(memory_nbytes: int) -> None:
    job = OneJob(memory_nbytes)
    assert not job.plan(100)
    # Ops that take half the time hide fewer copies.
    assert job.plan(50)
    assert not job.improve(50)
    assert [job.plan(latency_ns) for latency_ns in (51, 50, 52)] == [False] * 3
    # As slow again as it was then, and slower.
    assert job.plan(30)


def test_a_better_plan_is_within_what_its_job_was_given_while_it_was_looked_for() -> None:
    job = OneJob(470)
    job.plan(100)
    order = job.held.order
    better = Better(plan=replace(order.job_plan, quick=False), share=order.share, planning_ns=7)
    # Meanwhile another job came, and this one kept plan and share, but for the length of its turns.
    grant = replace(order.within.grant, iterations=5)
    within = replace(order.within, grant=grant, among=(JOB, 2))
    job.held.order = replace(order, within=within)
    found = better_order(PlanningId(2), job.held, (100,), better)
    assert found.within == within
    assert found.share == replace(order.share, iterations=5)
    assert (found.reason, found.planning, found.latencies_ns) == (Reason.IMPROVEMENT, 2, (100,))


NEWCOMER = JobId(2)


@pytest.fixture
def beside() -> tuple[dict[JobId, Held], Question]:
    """A job that runs by a plan made at once, and what is asked when another one arrives."""
    # In turns there is room for both, if one of them does with less.
    device = device_of(780)
    first = JobRequest(job_id=JOB, graph=GRAPH, latencies_ns=(100,) * len(GRAPH.ops))
    alone = plan(Question(requests=(first,), device=device))
    alone = replace(alone, plans=(replace(alone.plans[0], quick=True),))
    held = {JOB: Held(row=None), NEWCOMER: Held(row=None)}
    _, orders = plans_made(PlanningId(1), [first], {JOB: Reason.COLD_START}, alone, held)
    held[JOB].order = order = orders[JOB]
    requests = (replace(first, former=order.job_plan.as_former), replace(first, job_id=NEWCOMER))
    in_force, shares = (order.within, None), (order.share, None)
    question = Question(requests=requests, device=device, in_force=in_force, shares=shares, at_once=True)
    return held, question


def test_who_runs_keeps_its_plan_while_a_newcomer_is_planned_and_both_are_improved_then(beside) -> None:
    held, question = beside
    before = held[JOB].order
    reasons = {JOB: Reason.ARRIVAL, NEWCOMER: Reason.COLD_START}
    event, orders = plans_made(PlanningId(2), question.requests, reasons, plan(question), held)
    assert orders.keys() == {NEWCOMER}
    assert held[JOB].order is before
    assert event.quick_lanes
    # Its plan was made at once, and nobody has looked for a better one yet.
    assert JOB in event.improvable
    held[NEWCOMER].order = orders[NEWCOMER]
    requests = [
        replace(request, former=held[JobId(request.job_id)].order.job_plan.as_former)
        for request in question.requests
    ]
    with_care = replace(question, requests=tuple(requests), shares=(), at_once=False)
    found, orders = better_orders(PlanningId(3), requests, plan(with_care), held)
    assert dict(found.shares) == {job: order.share for job, order in orders.items()}
    assert {order.reason for order in orders.values()} == {Reason.IMPROVEMENT}
    in_force = [(orders.get(job) or held[job].order).within for job in held]
    assert [within.among for within in in_force] == [(JOB, NEWCOMER)] * 2
    assert [within.quick for within in in_force] == [False] * 2


@pytest.mark.parametrize("claimed_again", [False, True])
def test_who_ran_may_end_while_a_newcomer_is_planned_beside_it(beside, claimed_again) -> None:
    held, question = beside
    answered = plan(question)
    assert [made.job_id for made in answered.plans] == [NEWCOMER]
    # The controller forgets a job as soon as it is over; one that was paused may be back, without a plan.
    del held[JOB]
    if claimed_again:
        held[JOB] = Held(row=None)
    reasons = {JOB: Reason.ARRIVAL, NEWCOMER: Reason.COLD_START}
    event, orders = plans_made(PlanningId(2), question.requests, reasons, answered, held)
    assert orders.keys() == {NEWCOMER}
    assert JOB not in event.improvable


def test_where_looking_for_better_lanes_fails_those_in_force_stay(beside) -> None:
    held, question = beside
    found, orders = better_orders(PlanningId(2), question.requests, Broken(message="a defect"), held)
    assert (found.shares, orders) == ((), {})
