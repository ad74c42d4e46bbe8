"""The planning process, from the side that asks it."""

from dataclasses import replace
from queue import SimpleQueue

import pytest

from tensile_db.errors import InvalidRequest
from tensile_db.graph import Phase
from tensile_db.scheduler.request import SplitsWithin
from tensile_db.scheduler.sharing.improving import AsGood
from tensile_db.worker.planning.improving_process import PlanInForce
from tensile_db.worker.planning.known_graphs import KEPT_GRAPHS, KnownGraphs
from tensile_db.worker.planning.planner import Improver, Planner, SplitFinder
from tensile_db.worker.planning.planning_process import (
    Broken,
    Infeasible,
    Planned,
    Question,
    planning_error,
    with_known_graphs,
)
from tests.patience import PATIENCE_S
from tests.unit.worker.planning.questions import graph, question, search


@pytest.fixture
def planner():
    planner = Planner()
    yield planner
    planner.close()


@pytest.mark.slow
def test_a_plan_comes_back_for_each_job(planner):
    answer = planner.wait_for_answer(question())
    assert isinstance(answer, Planned)
    assert [(plan.job_id, plan.budget_nbytes) for plan in answer.plans] == [(7, 400)]


def test_too_little_memory_is_an_answer(planner):
    answer = planner.wait_for_answer(question(memory_nbytes=399))
    assert isinstance(answer, Infeasible)
    assert (answer.needed_nbytes, answer.budget_nbytes) == (400, 399)
    assert "use the policy auto, which splits them, or smaller batches" in answer.hint


def test_a_request_that_no_plan_can_meet_is_an_answer_with_what_to_ask_for_instead(planner):
    answer = planner.wait_for_answer(question(policy="vdnn_conv", phase=Phase.BACKWARD))
    assert isinstance(answer, Broken)
    error = planning_error(answer.message, answer.hint)
    assert (type(error), error.sqlstate) == (InvalidRequest, "22023")
    assert error.message == 'policy "vdnn_conv" swaps feature maps of convolutions, and this network has none'
    assert error.hint == "Use the policy auto or capuchin, which work on any network."


def test_a_failure_of_the_planner_is_an_answer(planner):
    answer = planner.wait_for_answer(question(policy="no such policy"))
    assert isinstance(answer, Broken)
    assert answer.message == 'unknown policy "no such policy"'
    assert planning_error("a defect", None).sqlstate == "XX000"


@pytest.mark.slow
def test_a_planning_process_that_was_killed_is_replaced(planner):
    planner.wait_for_answer(question())
    planner._process.kill()
    planner._process.wait()
    assert isinstance(planner.wait_for_answer(question()), Planned)


@pytest.fixture
def split_finder():
    split_finder = SplitFinder()
    yield split_finder
    split_finder.close()


@pytest.mark.slow
def test_splits_are_found_in_a_process_of_their_own(split_finder):
    assert split_finder.wait_for_answer(search(400)) == SplitsWithin(limit_nbytes=400, splits=())
    # The only op touches it all, and there is no telling how it could be split.
    too_little = SplitsWithin(limit_nbytes=399, splits=(), least_nbytes=400)
    assert split_finder.wait_for_answer(search(399)) == too_little
    failed = split_finder.wait_for_answer(replace(search(399), graph=None))
    assert isinstance(failed, Broken)


def test_what_nobody_wants_any_more_is_not_answered(split_finder):
    answers = []
    split_finder.ask(search(300), answers.append, lambda: False)
    split_finder.wait_for_answer(search(400))
    assert answers == []


@pytest.fixture
def improver():
    improver = Improver()
    yield improver
    improver.close()


def test_who_improves_plans_makes_first_ones_too(improver):
    answers = SimpleQueue()
    improver.plan(question(), answers.put)
    answer = answers.get(timeout=PATIENCE_S)
    assert isinstance(answer, Planned)
    assert [(plan.job_id, plan.budget_nbytes) for plan in answer.plans] == [(7, 400)]


@pytest.mark.slow
def test_better_plans_are_looked_for_in_a_process_of_their_own(planner, improver):
    asked = question(policy="auto")
    made = planner.wait_for_answer(asked)
    ((request,), (plan,), (within,), (share,)) = (asked.requests, made.plans, made.within, made.shares)
    in_force = PlanInForce(request=replace(request, former=plan.as_former), within=within, share=share)
    assert improver.wait_for_answer(in_force) == AsGood(eor=1.0, within_nbytes=400)
    # All that run together: are there better lanes?
    together = replace(asked, requests=(in_force.request,))
    assert improver.wait_for_answer(together).shares == made.shares
    failed = improver.wait_for_answer(replace(in_force, request=request))
    assert failed == Broken(message="AssertionError: a plan is in force")


def test_a_graph_that_comes_again_is_the_one_that_is_known():
    graphs = KnownGraphs()
    first, again, other = graph(), graph(), graph("other")
    assert graphs.known([first])[0] is first
    assert [id(each) for each in graphs.known([again, other, again])] == [id(first), id(other), id(first)]


def test_a_graph_that_was_captured_is_known_when_plans_of_it_are_asked_for():
    graphs, device = KnownGraphs(), question().device
    captured = graph()
    (told,) = with_known_graphs(Question(requests=(), device=device, captured=(captured,)), graphs).captured
    assert told is captured
    asked = with_known_graphs(replace(question(), captured=(graph("other"),)), graphs)
    assert asked.requests[0].graph is captured
    assert asked.captured[0].tensors[0].name == "other"


def test_a_planner_that_is_told_of_graphs_answers_as_one_that_is_not(planner):
    want = planner.wait_for_answer(question())
    for each in (graph(), graph("other")):
        planner.foresee(each, question().device)
    assert plans_of(planner.wait_for_answer(question())) == plans_of(want)


def plans_of(answer):
    return [plan.plan for plan in answer.plans]


def test_of_many_graphs_those_asked_for_first_are_given_up():
    graphs = KnownGraphs()
    first, again = graph(), graph()
    graphs.known([first])
    for number in range(KEPT_GRAPHS):
        graphs.known([graph(f"other {number}")])
    assert graphs.known([again])[0] is again
