"""Two real workers on one database: who gets which job, and what becomes of those of one that leaves."""

import os
import signal
import time

import pytest

from tests.fixtures.uninterrupted import trained_once
from tests.jobs.picture_jobs import NETWORK, cancel, is_training
from tests.patience import wait_until

# Its tests share a fixture.
pytestmark = pytest.mark.xdist_group("several_workers")

MIB = 2**20

#: Dropout, so that the generator's state counts; Adam, so that the optimizer's does.
TRAINING = {
    "epochs": 200,
    "optimizer": "adam",
    "learning_rate": 0.01,
    "options": {"hidden_units": [32, 16], "dropout": 0.3, "checkpoint_iterations": 40},
}


@pytest.fixture
def start(database, start_forked, tmp_path):
    """Start a worker process, wait until it is ready; return it and its id."""

    def start(**settings):
        before = {row["id"] for row in database.execute("SELECT id FROM tensile.workers")}
        service = start_forked(**settings)
        return service, wait_until(lambda: ready(database, before))[0]

    return start


def ready(database, before):
    rows = database.execute("SELECT id FROM tensile.workers WHERE state = 'ready' ORDER BY id")
    return [row["id"] for row in rows if row["id"] not in before]


def has_checkpoint(row):
    return (row["iteration"] or 0) > 60


def happened(database, job):
    rows = database.execute("SELECT kind FROM tensile.job_events WHERE job_id = %s ORDER BY id", job)
    return [row["kind"] for row in rows]


@pytest.fixture
def uninterrupted(database, start, reference):
    """The weights of the same training by one worker; trained once."""
    return trained_once(reference, database, lambda: start()[0], TRAINING)


def least_nbytes(database, start):
    """Return the least memory that the network needs, as a device that is too small says."""
    worker, _ = start(memory_nbytes=4096)
    job = database.submit("pictures", **NETWORK)
    row = database.wait(job)
    assert (row["state"], row["error_sqlstate"]) == ("failed", "53200")
    database.let_go(worker)
    return row["needed_nbytes"]


@pytest.mark.thorough
def test_a_large_job_fails_at_a_small_worker_and_goes_on_to_a_large_one_where_there_is_one(database, start):
    needed = least_nbytes(database, start)
    database.execute("UPDATE tensile.jobs SET needed_nbytes = NULL")
    _, small = start(memory_nbytes=needed - 1)
    job = database.submit("pictures", epochs=1, **NETWORK)
    row = database.wait(job)
    assert (row["state"], row["error_sqlstate"], row["worker_id"]) == ("failed", "53200", small)
    database.execute("UPDATE tensile.jobs SET needed_nbytes = NULL")
    # Full, so that the job is tried on the small one first.
    _, large = start(memory_nbytes=64 * MIB, max_jobs=1)
    first = database.submit("points", epochs=10**6, options={"device": "cpu"})
    database.wait_until(first, is_training)
    assert database.job(first)["worker_id"] == large
    job = database.submit("pictures", epochs=1, **NETWORK)
    row = database.wait_until(job, lambda row: row["wait_reason"] is not None)
    assert row["wait_reason"].startswith("waits for a device with ")
    assert row["needed_nbytes"] == needed
    assert cancel(database, first) == ["cancelled"]
    row = database.wait(job)
    assert (row["state"], row["worker_id"], row["attempt"]) == ("succeeded", large, 2)
    assert happened(database, job)[:4] == ["claimed", "requeued", "claimed", "started"]
    # What was learned of it is known of the next one like it, which goes straight there.
    again = database.submit("pictures", epochs=1, **NETWORK)
    row = database.wait(again)
    assert (row["state"], row["worker_id"], row["attempt"]) == ("succeeded", large, 1)


@pytest.mark.thorough
def test_small_jobs_spread_over_both(database, start):
    _, first = start()
    _, second = start()
    jobs = [database.submit("points", epochs=200) for _ in range(6)]
    rows = [database.wait(job) for job in jobs]
    assert [row["state"] for row in rows] == ["succeeded"] * 6
    assert {row["worker_id"] for row in rows} == {first, second}
    assert [row["attempt"] for row in rows] == [1] * 6
    weights = database.weights(jobs[0])
    assert all(database.weights(job) == weights for job in jobs)


def test_a_stopped_workers_job_goes_on_at_the_other_bit_for_bit(database, start, uninterrupted, tmp_path):
    # As on two machines; they look so seldom that they must be told of the job.
    both = [start(cache_dir=tmp_path / name, poll_s=3600.0) for name in ("one", "two")]
    job = database.submit("points", **TRAINING)
    held_by = database.wait_until(job, has_checkpoint)["worker_id"]
    ((holder, _),) = [pair for pair in both if pair[1] == held_by]
    ((_, other),) = [pair for pair in both if pair[1] != held_by]
    holder.stop()
    row = database.wait_until(job, lambda row: row["worker_id"] == other)
    row = database.wait(job)
    assert (row["state"], row["worker_id"], row["attempt"]) == ("succeeded", other, 2)
    assert database.weights(job) == uninterrupted
    assert "restarted" not in happened(database, job)


def test_after_kill_9_the_other_goes_on_bit_for_bit(database, start, uninterrupted):
    both = [start(lease_s=5.0) for _ in range(2)]
    job = database.submit("points", **TRAINING)
    held_by = database.wait_until(job, has_checkpoint)["worker_id"]
    ((holder, _),) = [pair for pair in both if pair[1] == held_by]
    ((_, other),) = [pair for pair in both if pair[1] != held_by]
    os.kill(holder.worker_pid, signal.SIGKILL)
    holder.stop()
    row = database.wait(job)
    assert (row["state"], row["worker_id"], row["attempt"]) == ("succeeded", other, 2)
    assert database.weights(job) == uninterrupted
    assert "taken_over" in happened(database, job)


@pytest.mark.thorough
def test_a_worker_that_joins_relieves_a_busy_one(database, start):
    _, one = start(sharing="fifo")
    first = database.submit("pictures", epochs=10**6, **NETWORK)
    database.wait_until(first, is_training)
    second, third = (database.submit("pictures", epochs=10**6, **NETWORK) for _ in range(2))
    for job in (second, third):
        database.wait_until(job, lambda row: row["state"] == "waiting")
    _, two = start(sharing="fifo")
    row = database.wait_until(second, is_training)
    assert (row["worker_id"], row["attempt"]) == (two, 2)
    time.sleep(2)
    rows = [database.job(job) for job in (first, second, third)]
    assert [(row["worker_id"], row["attempt"]) for row in rows] == [(one, 1), (two, 2), (one, 1)]
    assert cancel(database, first, second, third) == ["cancelled"] * 3


def test_a_worker_that_joins_takes_what_is_queued(database, start):
    _, one = start(max_jobs=1)
    first, second = (database.submit("points", epochs=10**6) for _ in range(2))
    database.wait_until(first, is_training)
    assert database.job(second)["state"] == "queued"
    _, two = start()
    assert database.wait_until(second, is_training)["worker_id"] == two
    assert database.job(first)["worker_id"] == one
    assert cancel(database, first, second) == ["cancelled"] * 2


def test_a_suspended_worker_keeps_no_job_from_the_other(database, start):
    first, one = start()
    _, two = start()
    os.kill(first.worker_pid, signal.SIGSTOP)
    try:
        jobs = [database.submit("points", epochs=1) for _ in range(3)]
        # Before the lease of the suspended one ends.
        rows = [database.wait(job, timeout_s=28) for job in jobs]
        assert [(row["state"], row["worker_id"]) for row in rows] == [("succeeded", two)] * 3
    finally:
        os.kill(first.worker_pid, signal.SIGCONT)
    assert one != two


@pytest.mark.thorough
def test_a_search_spreads_its_trials_and_an_explanation_is_given_by_whoever_can(database, start):
    start()
    start()
    asked = database.submit("pictures", kind="explain", **NETWORK)
    assert database.wait(asked)["state"] == "succeeded"
    space = '{"learning_rate": {"choices": [0.01, 0.02]}}'
    with database.connect() as connection:
        (search,) = connection.execute(
            "SELECT tensile_submit_search('mlp', 'points', %s, trials => 6, max_parallel => 4, epochs => 40)",
            [space],
        ).fetchone()
    row = database.wait(search)
    assert (row["state"], row["error_message"]) == ("succeeded", None)
    trials = database.execute("SELECT state FROM tensile.jobs WHERE search_id = %s", search)
    assert [trial["state"] for trial in trials] == ["succeeded"] * 6


def test_rows_of_a_job_that_has_ended_elsewhere_are_removed(database, start_worker, tmp_path):
    elsewhere = database.submit("points", options={"device": "elsewhere"})
    start_worker()
    assert database.wait(database.submit("points", epochs=1))["state"] == "succeeded"
    (cache,) = tmp_path.glob("database-*")
    left = cache / f"job-{elsewhere}-1"
    left.mkdir()
    assert database.wait(database.submit("points", epochs=1))["state"] == "succeeded"
    assert left.exists()
    assert cancel(database, elsewhere) == ["cancelled"]
    assert database.wait(database.submit("points", epochs=1))["state"] == "succeeded"
    wait_until(lambda: not left.exists())
