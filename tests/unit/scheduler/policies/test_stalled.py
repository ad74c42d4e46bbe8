"""Jobs whose ops stall are searched for in rounds, and what promises most is relieved."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import event, given

from tensile_db.graph import OpId
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.ways import USUAL_WAY
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.plan import Plan
from tensile_db.scheduler.policies.alone import plan_one
from tensile_db.scheduler.policies.drafts import Draft, Made
from tensile_db.scheduler.policies.stalled import StalledSearch, begin_with_stalls
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples
from tests.plans.drafted_jobs import drafted, stalling_jobs
from tests.plans.replayed_plans import timeline_of
from tests.steps.captured_steps import SMALL, captured_step

DEVICE = machine("sim:a6000")


def _made(period_ns):
    """A plan that is another one for each period."""
    return Made(plan=Plan(policy="auto", order=(OpId(period_ns),), events=()), period_ns=period_ns)


def _tried(order, period_ns, least_ns=1_000):
    """A plan in an order of two ops, whose ops take `least_ns`."""
    draft = Draft(residency=None, link=None, way=USUAL_WAY, hides=False, least_ns=least_ns)
    plan = Plan(policy="auto", order=tuple(map(OpId, order)), events=())
    return Made(plan=plan, period_ns=period_ns, draft=draft)


class _Drafter:
    """Takes from each plan's time what it is told to, and keeps what it was given."""

    def __init__(self, saved_ns=0):
        self.saved_ns = saved_ns
        self.given = []

    def relieved(self, made, *, efforts=1):
        self.given.append(made.period_ns)
        return replace(made, period_ns=made.period_ns - self.saved_ns)


def _rounds(monkeypatch, found_ns, *, most_rounds=10):
    """Return the best period that rounds find whose searches find these, and with what each round began."""
    begun, left = [], list(found_ns)

    def found(self):
        begun.append(self._current.period_ns)
        return [_made(period_ns) for period_ns in left.pop(0)]

    monkeypatch.setattr(StalledSearch, "_found", found)
    search = StalledSearch(_Drafter(), 0, _made(10_000), most_rounds=most_rounds)
    search.go_on()
    assert not left
    assert not search.make_a_round()
    return search.best.period_ns, begun


@pytest.mark.parametrize(
    ("found_ns", "best_ns", "begun_with_ns"),
    [
        # Two rounds in vain are the end, whether they find nothing within the budget or nothing faster.
        ([[], [11_000]], 10_000, [10_000, 10_000]),
        # What is found is begun with, also where it takes a little longer ...
        ([[9_000], [9_100], [8_000], [8_500], [8_100]], 8_000, [10_000, 9_000, 9_100, 8_000, 8_000]),
        # ... but not where it takes much longer.
        ([[9_000], [9_300], [9_300]], 9_000, [10_000, 9_000, 9_000]),
        # What saves next to nothing is taken, and counts as in vain.
        ([[9_990], [9_980]], 9_980, [10_000, 9_990]),
    ],
)
def test_rounds_go_on_from_what_was_found_until_they_save_no_time(
    monkeypatch, found_ns, best_ns, begun_with_ns
):
    assert _rounds(monkeypatch, found_ns) == (best_ns, begun_with_ns)


@pytest.mark.parametrize("most_rounds", [0, 1, 3])
def test_there_is_an_end_even_where_each_round_saves_much(monkeypatch, most_rounds):
    found_ns = [[9_000], [8_000], [7_000]][:most_rounds]
    best_ns, begun = _rounds(monkeypatch, found_ns, most_rounds=most_rounds)
    assert best_ns == 10_000 - 1_000 * most_rounds
    assert len(begun) == most_rounds


@pytest.mark.parametrize(
    ("found_ns", "relieved_ns"),
    [
        # The two that promise most, each once though it be found twice, and the faster one further.
        ([10_100, 10_000, 10_200, 10_000], [10_000, 10_100, 9_900]),
        # None that takes much longer than the first.
        ([10_000, 10_600], [10_000, 9_900]),
        # Nothing further where that is far from the best plan.
        ([10_900, 11_000], [10_900, 11_000]),
    ],
)
def test_what_promises_most_is_relieved(monkeypatch, found_ns, relieved_ns):
    monkeypatch.setattr(StalledSearch, "_found", lambda self: [_made(ns) for ns in found_ns])
    drafter = _Drafter(saved_ns=100)
    StalledSearch(drafter, 0, _made(10_500), most_rounds=1).go_on()
    assert drafter.given == relieved_ns


BEST = _tried([0, 1], 10_000)


@pytest.mark.parametrize(
    ("tried", "relieved_ns"),
    [
        # Of each order the fastest, the best plan's own among them: it may have been searched for.
        (
            [BEST, _tried([0, 1], 11_000), _tried([1, 0], 11_500), _tried([1, 0], 11_400)],
            [10_000, 11_000, 11_400],
        ),
        # None that takes much longer,
        ([_tried([1, 0], 12_100)], [10_000]),
        # whose ops alone take as long as the best plan,
        ([_tried([1, 0], 11_000, least_ns=10_000)], [10_000]),
        # whose ops wait for nothing,
        ([_tried([1, 0], 9_999, least_ns=9_999)], [10_000]),
        # or that was not drafted here.
        ([replace(_tried([1, 0], 11_000), draft=None)], [10_000]),
    ],
)
def test_relief_begins_in_each_order_that_was_tried(monkeypatch, tried, relieved_ns):
    monkeypatch.setattr(StalledSearch, "_found", lambda self: [])
    drafter = _Drafter()
    planner = SimpleNamespace(device=DEVICE, drafter=drafter, budget_nbytes=0, ops_ns=1_000, tried=tried)
    begin_with_stalls(planner, BEST)
    assert drafter.given == relieved_ns
    # Relief has changed what they were made of.
    assert [made for made in tried if made.period_ns not in relieved_ns] == planner.tried


@pytest.mark.parametrize(("other_ns", "begun_ns"), [(1_500, [10_000, 1_500]), (10_000, [10_000])])
def test_rounds_begin_with_the_best_plan_and_what_relief_made_faster_than_it(monkeypatch, other_ns, begun_ns):
    monkeypatch.setattr(StalledSearch, "_found", lambda self: [])
    drafter, other = _Drafter(), _tried([1, 0], 11_000)
    drafter.relieved = lambda made, *, efforts: replace(made, period_ns=other_ns) if made is other else made
    planner = SimpleNamespace(device=DEVICE, drafter=drafter, budget_nbytes=0, ops_ns=1_000, tried=[other])
    begun = begin_with_stalls(planner, BEST)
    assert [search.best.period_ns for search in begun] == begun_ns


@pytest.mark.slow
@pytest.mark.usefixtures("little_effort")
@pytest.mark.parametrize("is_compared", [True, False])
def test_a_plan_that_is_only_compared_has_one_round(monkeypatch, is_compared):
    rounds, make = [], StalledSearch.make_a_round
    monkeypatch.setattr(StalledSearch, "make_a_round", lambda self: rounds.append(self) or make(self))
    graph = captured_step(SMALL, batch=32, side=96)
    job = JobRequest(job_id=1, graph=graph, latencies_ns=predict_latencies_ns(graph, DEVICE))
    plan_one(job, DEVICE, lower_bound_peak_nbytes(graph), 1, is_compared=is_compared)
    begun = set(rounds)
    assert begun
    assert (len(rounds) == len(begun)) == is_compared


@pytest.mark.slow
@given(stalling_jobs())
@examples(40)
def test_what_is_found_takes_no_longer_keeps_the_budget_and_is_the_same_again(tight):
    job, device, budget_nbytes = tight
    searches = []
    for _ in range(2):
        drafter, begun = drafted(job, device, budget_nbytes)
        searches.append(StalledSearch(drafter, budget_nbytes, begun, most_rounds=2))
        searches[-1].go_on()
    found, again = (search.best for search in searches)
    assert (found.plan, found.period_ns) == (again.plan, again.period_ns)
    assert found.period_ns <= begun.period_ns
    event("less time" if found.period_ns < begun.period_ns else "as much time")
    assert timeline_of(job.graph, job.latencies_ns, found.plan, device).period_ns <= begun.period_ns
    assert lower(job.graph, found.plan).guaranteed_peak_nbytes <= budget_nbytes
