"""Explanations: which questions the planning process is asked, and what rows come of the answers."""

from dataclasses import replace

import pytest

from tensile_db.errors import TensileError
from tensile_db.scheduler.request import JobRequest
from tensile_db.worker.planning.asking import ask_explanation
from tensile_db.worker.planning.explaining import explain
from tensile_db.worker.planning.planning_process import Broken, Infeasible, Planned, answer
from tests.graphs.hand_made import chain, device_of

DEVICE = device_of(1000)
LATENCIES_NS = (100,) * 10


class Planning:
    """Stands in for the planning processes; questions wait until `run`."""

    def __init__(self):
        self.asked = []
        #: Of these, those that no newcomer waits for.
        self.asked_with_care = []
        self.waiting = []
        self.explained = []

    def ask(self, question, answered):
        self.asked.append(question)
        self.waiting.append((question, answered))

    def ask_with_care(self, question, answered):
        self.asked_with_care.append(question)
        self.ask(question, answered)

    def run(self):
        """Answer all questions in turn; return how many waited at once at most."""
        most = 0
        while self.waiting:
            most = max(most, len(self.waiting))
            question, answered = self.waiting.pop(0)
            answered(answer(question))
        return most


@pytest.fixture
def planning():
    return Planning()


def request(job_id=1, policy="tensile", limit=None):
    return JobRequest(
        job_id=job_id,
        graph=chain(state_nbytes=30),
        latencies_ns=LATENCIES_NS,
        policy=policy,
        memory_limit_nbytes=limit,
    )


def explained(planning, own, neighbours=(), device=DEVICE):
    ask_explanation(
        planning.ask, planning.ask_with_care, own, neighbours, device, "auto", planning.explained.append
    )
    assert planning.run() == 1, "a running job's new plan must never wait for more than one question"
    (explanation,) = planning.explained
    return explanation


def test_the_frontier_goes_in_even_steps_from_the_least_to_vanillas_peak(planning):
    explanation = explained(planning, request())
    assert isinstance(explanation.alone, Planned)
    assert explanation.together is None
    assert [point.budget_nbytes for point in explanation.frontier] == [240, 256, 272, 288, 304, 321]
    for point in explanation.frontier:
        assert point.prediction.guaranteed_peak_nbytes <= point.budget_nbytes
    assert explanation.frontier[-1].prediction.time_ns == 1000


def test_neighbours_are_planned_with_the_job_but_have_no_part_in_its_frontier(planning):
    alone = explained(planning, request())
    planning.explained.clear()
    beside = explained(planning, request(), [request(job_id=2)])
    assert [plan.job_id for plan in beside.together.plans] == [2, 1]
    assert beside.frontier == alone.frontier


@pytest.mark.parametrize("neighbours", [(), (2,)])
def test_nothing_is_searched_for_that_keeps_neighbours_waiting_nor_for_the_frontier(planning, neighbours):
    explained(planning, request(), [request(job_id=job) for job in neighbours])
    own = [asked for question in planning.asked for asked in question.requests if asked.job_id == 1]
    assert len(own) == 1 + len(neighbours) + 6
    assert [asked.hurried for asked in own] == [bool(neighbours)] * (1 + len(neighbours)) + [True] * 6


@pytest.mark.parametrize("neighbours", [(), (2,)])
def test_what_takes_care_keeps_no_newcomer_waiting(planning, neighbours):
    explained(planning, request(), [request(job_id=job) for job in neighbours])
    slow = [question for question in planning.asked if not all(each.hurried for each in question.requests)]
    beside = [question for question in slow if len(question.requests) > 1]
    assert planning.asked_with_care == ([] if neighbours else slow)
    # What runs is planned as it always is.
    assert beside == (slow if neighbours else [])


def test_a_jobs_own_limit_does_not_cut_its_frontier(planning):
    assert explained(planning, request(limit=300)).frontier[-1].budget_nbytes == 321


def rows_of(explanation, own, device):
    return explain(
        explanation,
        own.graph,
        LATENCIES_NS,
        device,
        policy="auto",
        batch_size=8,
        iterations=20,
        limit_nbytes=100,
    )


def test_a_job_that_does_not_fit_is_told_what_would_do_and_what_that_would_cost(planning):
    explanation = explained(planning, request(), device=device_of(100))
    assert isinstance(explanation.alone, Infeasible)
    rows = rows_of(explanation, request(), device_of(100))
    said = {row["property"]: row["value"] for row in rows}
    assert (said["fits"], said["policy"], said["batch_size"], said["memory_limit"]) == (
        "no",
        "auto",
        "8",
        "100",
    )
    assert (said["needed_memory"], said["lower_bound_peak"], said["vanilla_peak"]) == ("240", "240", "321")
    assert rows[0]["detail"].startswith("the job needs at least 240 B")
    assert (
        [row["value"] for row in rows if row["property"] == "frontier"][-1] == said["vanilla_time"] == "1000"
    )
    assert said["iterations"] == "20"
    assert not {"planned_peak", "training_time"} & set(said)


def test_a_job_that_cannot_be_planned_has_no_frontier(planning):
    explanation = explained(planning, request(policy="none such"))
    assert isinstance(explanation.alone, Broken)
    assert explanation.frontier == ()
    with pytest.raises(TensileError, match="none such"):
        rows_of(explanation, request(), DEVICE)


def test_the_rows_have_the_frontier_and_the_top_tensors(planning):
    rows = rows_of(explained(planning, request()), request(), DEVICE)
    frontier = [row for row in rows if row["property"] == "frontier"]
    assert len(frontier) == 6
    assert (frontier[-1]["value"], frontier[-1]["unit"]) == ("1000", "ns")
    assert frontier[-1]["detail"].startswith("Within 321 B, 100% of the vanilla peak: EOR 1.000, MSR ")
    top = [row for row in rows if row["property"] == "top_tensor"]
    assert [row["value"] for row in top] == ["30", "100", "40", "10", "10"]
    assert top[1] == {
        "property": "top_tensor",
        "value": "100",
        "unit": "bytes",
        "detail": "tensor3 (activation): idle for 0.0 ms between layer (op 2) and layer_backward (op 5).",
    }


def test_a_budget_that_the_policy_cannot_keep_is_a_row_too(planning):
    own = replace(request(), policy="vanilla")
    rows = rows_of(explained(planning, own), own, DEVICE)
    frontier = [row for row in rows if row["property"] == "frontier"]
    assert [row["value"] for row in frontier] == ["none"] * 5 + ["1000"]
    assert frontier[0]["detail"] == "Within 240 B this policy has no plan."
