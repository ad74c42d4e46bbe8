"""A real worker runs trainings in parts, in less memory than their largest op needs."""

import itertools
import threading

import pytest

from tensile_db.worker.planning.planner import Planner, SplitFinder

NETWORK = {
    "architecture": "test_resnet",
    "features": ["image"],
    "batch_size": 32,
    "epochs": 8,
    # Without state there are few ops, and splits are found soon.
    "optimizer": "sgd",
    "options": {"image_size": 32},
}


#: Of the 3 MiB that the largest op needs; with less, ops stall, and looking for splits takes longer.
LIMIT_NBYTES = 29 * 2**20 // 10


def test_a_training_that_fits_in_parts_alone_trains_and_says_so(database, start_worker):
    start_worker()
    limited = {**NETWORK, "memory_limit_nbytes": LIMIT_NBYTES}
    refused = database.wait(database.submit("pictures", **limited, policy="tensile"))
    assert (refused["state"], refused["error_sqlstate"]) == ("failed", "53200")
    row = database.wait(database.submit("pictures", **limited, policy="tsplit"))
    assert row["state"] == "succeeded", row["error_message"]
    assert row["measured_peak_nbytes"] <= row["guaranteed_peak_nbytes"] <= LIMIT_NBYTES
    (plan,) = database.execute(
        "SELECT * FROM tensile.plans WHERE job_id = %s AND reason = 'cold_start'", row["id"]
    )
    assert plan["policy"] == "tsplit"
    ops = database.execute("SELECT * FROM tensile.graph_ops WHERE digest = %s", plan["graph_digest"])
    assert len(ops) == len(plan["order"])
    (graph,) = database.execute("SELECT * FROM tensile.graphs WHERE digest = %s", plan["graph_digest"])
    assert (graph["architecture"], graph["batch_size"], graph["optimizer"]) == ("test_resnet", 32, "sgd")
    measured = database.execute("SELECT op_id FROM tensile.latency_logs WHERE job_id = %s", row["id"])
    assert 0 < len(measured) < len(ops)


@pytest.fixture
def go_on(monkeypatch):
    """Searches for splits are held up until this is set."""
    event, find = threading.Event(), SplitFinder._answer

    def find_later(self, asked):
        event.wait(60)
        return find(self, asked)

    monkeypatch.setattr(SplitFinder, "_answer", find_later)
    yield event
    event.set()


def is_being_planned(row):
    return row["phase"] == "planning"


@pytest.mark.thorough
def test_other_jobs_are_planned_while_splits_are_looked_for(database, start_worker, go_on):
    start_worker()
    limited = NETWORK | {"memory_limit_nbytes": LIMIT_NBYTES, "epochs": 1}
    job = database.submit("pictures", **limited)
    database.wait_until(job, is_being_planned)
    other = database.wait(database.submit("pictures", **(NETWORK | {"epochs": 1})))
    assert other["state"] == "succeeded", other["error_message"]
    assert is_being_planned(database.job(job))
    go_on.set()
    row = database.wait(job)
    assert row["state"] == "succeeded", row["error_message"]
    assert row["measured_peak_nbytes"] <= LIMIT_NBYTES
    graphs = database.execute(
        "SELECT graph_digest, policy FROM tensile.plans WHERE job_id IN (%s, %s)", job, other["id"]
    )
    assert {graph["policy"] for graph in graphs} == {"auto"}
    assert len({graph["graph_digest"] for graph in graphs}) == 2


def test_a_job_that_waits_for_its_splits_is_cancelled_at_once(database, start_worker, go_on):
    start_worker()
    limited = NETWORK | {"memory_limit_nbytes": LIMIT_NBYTES, "epochs": 1}
    first, second = (database.submit("pictures", **limited) for _ in range(2))
    for job in (first, second):
        database.wait_until(job, is_being_planned)
        database.ask(job, cancel_requested=True)
        assert database.wait(job)["state"] == "cancelled"
    go_on.set()
    # tsplit finds its splits sooner than auto does.
    explained = database.wait(database.submit("pictures", kind="explain", **limited, policy="tsplit"))
    assert explained["state"] == "succeeded", explained["error_message"]


@pytest.fixture
def killed(monkeypatch):
    """Call it to have so many searches for splits end by kill -9."""
    start, numbers = SplitFinder._running, itertools.count(1)

    def arm(times):
        def start_and_kill(self):
            process = start(self)
            if next(numbers) <= times:
                process.kill()
                process.wait()
            return process

        monkeypatch.setattr(SplitFinder, "_running", start_and_kill)

    return arm


@pytest.fixture
def planned(monkeypatch):
    """Jobs of which the planner was asked, and whether their splits were known."""
    jobs, answer = [], Planner._answer

    def answer_and_say(self, asked):
        requests = asked.question.requests
        jobs.extend((request.job_id, request.found_splits is not None) for request in requests)
        return answer(self, asked)

    monkeypatch.setattr(Planner, "_answer", answer_and_say)
    return jobs


@pytest.mark.thorough
def test_splits_are_looked_for_once_more_where_the_process_that_looks_is_killed(
    database, start_worker, killed, planned
):
    killed(1)
    start_worker()
    job = database.submit("pictures", **(NETWORK | {"memory_limit_nbytes": LIMIT_NBYTES, "epochs": 1}))
    row = database.wait(job)
    assert row["state"] == "succeeded", row["error_message"]
    assert planned[0] == (job, True)


@pytest.mark.thorough
def test_a_job_whose_splits_cannot_be_looked_for_fails_and_leaves_the_planner_alone(
    database, start_worker, killed, planned
):
    killed(2)
    start_worker()
    limited = NETWORK | {"memory_limit_nbytes": LIMIT_NBYTES, "epochs": 1}
    failed = database.wait(database.submit("pictures", **limited))
    assert (failed["state"], failed["error_sqlstate"]) == ("failed", "XX000")
    assert failed["error_message"].startswith("planning the job failed: the splitting process ended: ")
    assert planned == []
    # Nothing is left of it.
    row = database.wait(database.submit("pictures", **limited))
    assert row["state"] == "succeeded", row["error_message"]
