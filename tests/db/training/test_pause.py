"""Pausing on a real worker: the same bits as never paused, memory given back at once, nothing ever lost."""

import os
import signal
from contextlib import contextmanager

import psycopg
import pytest

from tests.fixtures.uninterrupted import trained_once
from tests.fixtures.worker import Database
from tests.jobs.ended_jobs import METRICS_AN_EPOCH
from tests.patience import wait_until

# Its tests share a fixture.
pytestmark = pytest.mark.xdist_group("worker_pause")

#: Dropout, so that the generator's state counts; Adam, so that the optimizer's does.  No checkpoint but the
#: pause's own.
TRAINING = {
    "epochs": 120,
    "optimizer": "adam",
    "learning_rate": 0.01,
    "options": {"hidden_units": [32, 16], "dropout": 0.3, "checkpoint_seconds": 1e6},
}
ITERATIONS = TRAINING["epochs"] * 9


@pytest.fixture
def uninterrupted(database, start_worker, reference):
    """The weights of the same training without any interruption; trained once."""
    return trained_once(reference, database, start_worker, TRAINING)


def pause(database, job):
    database.ask(job, pause_requested=True)
    return database.wait_until(job, is_paused)


def is_paused(row):
    assert row["finished_at"] is None, row
    return row["state"] == "paused"


def has_run(iterations):
    return lambda row: row["state"] == "running" and (row["iteration"] or 0) > iterations


def checkpoints_of(database, job):
    return database.execute("SELECT iteration FROM tensile.checkpoints WHERE job_id = %s AND complete", job)


def events_of(database, job):
    return [
        row["kind"]
        for row in database.execute("SELECT kind FROM tensile.job_events WHERE job_id = %s ORDER BY id", job)
    ]


def attempts_used(database, row):
    """How often the job was begun: a worker that is about to stop gives back what it has just claimed."""
    return row["attempt"] - events_of(database, row["id"]).count("requeued")


def used_nbytes(database):
    (row,) = database.execute("SELECT sum(used_nbytes) AS nbytes FROM tensile.devices")
    return row["nbytes"]


def wait_until_free(database):
    wait_until(lambda: not used_nbytes(database))


@pytest.mark.thorough
def test_a_job_paused_twice_has_the_bits_of_one_that_was_not(database, start_worker, uninterrupted):
    first = start_worker()
    job = database.submit("points", **TRAINING)
    reached = [0]
    for _ in range(2):
        database.wait_until(job, has_run(reached[-1]))
        row = pause(database, job)
        assert (row["worker_id"], row["phase"], row["budget_nbytes"]) == (None, "paused", None)
        (checkpoint,) = checkpoints_of(database, job)
        assert checkpoint["iteration"] == row["iteration"] < ITERATIONS
        reached.append(row["iteration"])
        # Any worker goes on with it.
        database.let_go(first)
        first = start_worker()
        database.ask(job, pause_requested=False)
    row = database.wait(job)
    assert (row["state"], attempts_used(database, row)) == ("succeeded", 3)
    assert 0 < reached[1] < reached[2]
    assert database.weights(job) == uninterrupted
    assert checkpoints_of(database, job) == []
    metrics = "SELECT count(*) AS rows FROM tensile.training_metrics WHERE job_id = %s"
    assert database.execute(metrics, job) == [{"rows": METRICS_AN_EPOCH * TRAINING["epochs"]}]


def test_nobody_takes_a_paused_job(database, start_worker):
    start_worker()
    job = database.submit("points", **TRAINING)
    database.wait_until(job, has_run(20))
    pause(database, job)
    wait_until_free(database)
    other = database.submit("points", epochs=1)
    assert database.wait(other)["state"] == "succeeded"
    row = database.job(job)
    assert (row["state"], row["attempt"]) == ("paused", 1)
    database.ask(job, cancel_requested=True)
    assert database.job(job)["state"] == "cancelled"
    assert checkpoints_of(database, job) == []


@pytest.mark.thorough
def test_a_validation_is_left_for_a_pause_and_done_again(database, start_worker):
    """Nearly all rows are held out, so that the pause comes in a validation."""
    database.execute(
        "CREATE TABLE many AS SELECT (i %% 7)::real AS a, (i %% 5)::real AS b, i %% 2 AS label"
        " FROM generate_series(1, 15000) i; ALTER TABLE many OWNER TO anna"
    )
    start_worker()
    training = TRAINING | {"epochs": 2, "validation": 0.99}
    plain = database.submit("many", **training)
    assert database.wait(plain)["state"] == "succeeded"
    job = database.submit("many", **training)
    database.wait_until(job, lambda row: row["phase"] == "validating")
    row = pause(database, job)
    assert row["epoch"] <= 2
    database.ask(job, pause_requested=False)
    assert database.wait(job)["state"] == "succeeded"
    assert database.weights(job) == database.weights(plain)


@contextmanager
def checkpoints_held_up(database: Database):
    """Keep everybody from writing tensors of checkpoints."""
    with psycopg.connect(database.admin) as connection:
        connection.execute("LOCK TABLE tensile.checkpoint_tensors IN SHARE MODE")
        yield


def pause_and_get_stuck(database, job):
    """Return once the job's thread waits to write its checkpoint."""
    database.ask(job, pause_requested=True)
    waits = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'tensile.checkpoint_tensors'::regclass"
    wait_until(lambda: database.execute(waits), lambda: database.job(job))


@pytest.fixture
def stuck(database, start_worker, uninterrupted):
    """Give a worker, and a job of it that is being paused and cannot write its checkpoint; then it can."""
    worker = start_worker()
    job = database.submit("points", **TRAINING)
    database.wait_until(job, has_run(20))
    return worker, job


def test_memory_is_given_back_before_the_checkpoint_is_written(database, stuck):
    _, job = stuck
    with checkpoints_held_up(database):
        pause_and_get_stuck(database, job)
        wait_until_free(database)
        assert events_of(database, job)[-1] == "memory_freed"
        assert database.job(job)["state"] == "running"
        other = database.submit("points", epochs=1)
        assert database.wait(other)["state"] == "succeeded"
    database.wait_until(job, is_paused)


def test_a_job_resumed_while_it_is_being_paused_goes_straight_on(database, stuck, uninterrupted):
    _, job = stuck
    with checkpoints_held_up(database):
        pause_and_get_stuck(database, job)
        database.ask(job, pause_requested=False)
    row = database.wait(job)
    assert (row["state"], row["attempt"]) == ("succeeded", 2)
    assert database.weights(job) == uninterrupted
    assert "paused" not in events_of(database, job)


def test_a_job_cancelled_while_it_is_being_paused_is_cancelled(database, stuck):
    _, job = stuck
    with checkpoints_held_up(database):
        pause_and_get_stuck(database, job)
        database.ask(job, cancel_requested=True)
    row = database.wait(job)
    assert (row["state"], row["error_sqlstate"], row["attempt"]) == ("cancelled", "57014", 1)
    assert database.execute("SELECT * FROM tensile.checkpoints WHERE job_id = %s", job) == []


def test_a_worker_that_shuts_down_finishes_the_pause(database, stuck, start_worker, uninterrupted):
    worker, job = stuck
    with checkpoints_held_up(database):
        pause_and_get_stuck(database, job)
        worker.stop()
    row = database.wait_until(job, is_paused)
    (checkpoint,) = checkpoints_of(database, job)
    assert checkpoint["iteration"] == row["iteration"]
    start_worker()
    database.ask(job, pause_requested=False)
    assert database.wait(job)["state"] == "succeeded"
    assert database.weights(job) == uninterrupted


@pytest.mark.thorough
def test_a_job_whose_worker_is_killed_while_it_is_being_paused_rests(
    database, start_worker, start_forked, uninterrupted
):
    supervised = start_forked(memory_nbytes=64 * 2**20)
    training = TRAINING | {"options": TRAINING["options"] | {"checkpoint_iterations": 40}}
    job = database.submit("points", **training)
    database.wait_until(job, lambda row: checkpoints_of(database, job))
    with checkpoints_held_up(database):
        pause_and_get_stuck(database, job)
        os.kill(supervised.worker_pid, signal.SIGKILL)
    row = database.wait_until(job, is_paused)
    assert (row["worker_id"], row["attempt"]) == (None, 1)
    assert events_of(database, job)[-1] == "paused"
    database.ask(job, pause_requested=False)
    row = database.wait(job)
    assert (row["state"], attempts_used(database, row)) == ("succeeded", 2)
    assert database.weights(job) == uninterrupted


@pytest.mark.thorough
def test_a_job_that_reads_or_waits_is_paused_without_a_checkpoint(database, start_worker):
    """The second has to wait for the end of the first."""
    network = {"architecture": "test_resnet", "features": ["image"], "batch_size": 8, "policy": "vanilla"}
    start_worker(sharing="fifo")
    first = database.submit("pictures", epochs=10**6, **network)
    database.wait_until(first, has_run(1))
    second = database.submit("pictures", epochs=1, **network)
    database.wait_until(second, lambda row: row["state"] == "waiting")
    assert pause(database, second)["iteration"] is None
    third = database.submit("pictures", epochs=1, **network)
    database.wait_until(third, lambda row: row["worker_id"] is not None)
    assert pause(database, third)["iteration"] is None
    database.ask(second, pause_requested=False)
    database.wait_until(second, lambda row: row["state"] == "waiting")
    # A paused job is nobody's first.
    pause(database, first)
    assert database.wait(second)["state"] == "succeeded"
    assert checkpoints_of(database, third) == []


def test_a_job_whose_role_has_used_up_its_device_time_rests_and_goes_on_with_more(
    database, start_worker, uninterrupted
):
    def allow(seconds):
        database.execute("SELECT tensile_set_quota('anna', max_device_seconds => %s)", seconds)

    (used,) = database.execute("SELECT coalesce(sum(device_seconds), 0) AS seconds FROM tensile.jobs")
    allow(used["seconds"] + 0.2)
    start_worker()
    job = database.submit("points", **TRAINING)
    row = database.wait_until(job, is_paused)
    assert row["pause_reason"].startswith("its role has used ")
    assert row["device_seconds"] >= 0.2
    with pytest.raises(psycopg.Error) as caught:
        database.execute("SELECT tensile_resume(%s)", job)
    assert caught.value.sqlstate == "53400"
    allow(1000)
    database.execute("SELECT tensile_resume(%s)", job)
    ended = database.wait(job)
    assert (ended["state"], ended["pause_reason"]) == ("succeeded", None)
    assert ended["device_seconds"] > row["device_seconds"]
    assert database.weights(job) == uninterrupted
