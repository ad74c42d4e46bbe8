"""Who gets which job, and who may write to it, on a real server."""

import threading
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from tensile_db.catalog import checkpoints, fence, jobs, leases, workers
from tensile_db.errors import LostLease
from tests.at_once import at_once
from tests.fixtures.worker import DEVICE


def register(engine, pid=1):
    with engine.begin() as conn:
        return workers.register(conn, host="here", pid=pid, version="0", device=DEVICE)


def claim(engine, worker, *, limit=10, lease_s=30.0):
    with engine.begin() as conn:
        return leases.claim(conn, worker=worker, device="cpu", limit=limit, lease_s=lease_s)[0]


def silence(database, job):
    database.execute("UPDATE tensile.jobs SET heartbeat_at = now() - interval '1 minute' WHERE id = %s", job)


def test_jobs_are_claimed_by_priority_then_by_age(database, engine):
    first, second, urgent = (database.submit("points", priority=p) for p in (0, 0, 5))
    worker = register(engine)
    assert [job.id for job in claim(engine, worker, limit=2)] == [urgent, first]
    assert [job.id for job in claim(engine, worker)] == [second]


def test_a_claimed_job_carries_its_request_and_its_row_tells_who_has_it(database, engine):
    submitted = database.submit("points", options={"image_size": 8})
    worker = register(engine)
    (job,) = claim(engine, worker)
    assert (job.architecture, job.features, job.options) == ("mlp", ["a", "b"], {"image_size": 8})
    assert (job.owner, job.attempt, job.worker_id) == ("anna", 1, worker)
    row = database.job(submitted)
    assert (row["state"], row["phase"], row["worker_id"], row["attempt"]) == ("running", "reading", worker, 1)


def test_two_workers_at_once_never_claim_the_same_job(database, engine):
    submitted = {database.submit("points") for _ in range(30)}
    claimed = {worker: [] for worker in (register(engine, 1), register(engine, 2))}
    start = threading.Barrier(2)

    def work(worker):
        start.wait()
        while found := claim(engine, worker, limit=1):
            claimed[worker] += [job.id for job in found]

    at_once(work, claimed)
    taken = [job for mine in claimed.values() for job in mine]
    assert len(taken) == 30
    assert set(taken) == submitted


def test_a_job_for_another_device_is_left_alone(database, engine):
    database.submit("points", options={"device": "cuda:0"})
    assert claim(engine, register(engine)) == []


def test_no_job_is_claimed_where_roles_have_other_numbers(database, engine):
    """As where a dump's rows are restored beneath a worker."""
    submitted = database.submit("points")
    worker = register(engine)
    database.execute("INSERT INTO tensile.homes (system_identifier, jobs_oid) VALUES (1, 1)")
    assert claim(engine, worker) == []
    with pytest.raises(psycopg.errors.ObjectInUse):
        database.execute("SELECT * FROM tensile_after_restore()")
    database.execute("UPDATE tensile.workers SET state = 'gone'")
    database.execute("SELECT * FROM tensile_after_restore()")
    assert claim(engine, worker) == []
    assert database.execute("SELECT id FROM tensile.jobs WHERE id = %s", submitted) == []
    later = database.submit("points")
    assert [job.id for job in claim(engine, worker)] == [later]


def test_a_job_is_not_taken_over_before_its_lease_has_run_out(database, engine):
    job = database.submit("points")
    claim(engine, register(engine, 1))
    successor = register(engine, 2)
    assert claim(engine, successor) == []
    silence(database, job)
    assert [(found.id, found.attempt) for found in claim(engine, successor)] == [(job, 2)]


def test_what_a_job_writes_of_itself_renews_its_lease(database, engine):
    job = database.submit("points")
    (claimed,) = claim(engine, register(engine, 1))
    silence(database, job)
    with engine.begin() as conn:
        fence.write(conn, claimed.fence, iteration=7)
    assert claim(engine, register(engine, 2)) == []
    assert database.job(job)["iteration"] == 7


def test_after_a_takeover_the_first_attempt_can_write_no_more(database, engine):
    job = database.submit("points")
    (before,) = claim(engine, register(engine, 1))
    silence(database, job)
    (after,) = claim(engine, register(engine, 2))
    with pytest.raises(LostLease), engine.begin() as conn:
        jobs.fail(conn, before.fence, sqlstate="38000", message="late", hint="")
    with engine.begin() as conn:
        jobs.succeed(conn, after.fence, {"loss": 0.5})
    assert database.job(job)["state"] == "succeeded"


def test_an_ended_job_takes_no_more_writes(database, engine):
    database.submit("points")
    (job,) = claim(engine, register(engine))
    with engine.begin() as conn:
        jobs.cancel(conn, job.fence)
    with pytest.raises(LostLease), engine.begin() as conn:
        jobs.succeed(conn, job.fence, {})


def test_the_pulse_renews_leases_and_tells_of_what_is_asked_and_of_losses(database, engine):
    kept, cancelled, lost, paused = (database.submit("points") for _ in range(4))
    worker = register(engine, 1)
    claim(engine, worker)
    silence(database, lost)
    claim(engine, register(engine, 2))
    silence(database, kept)
    database.ask(cancelled, cancel_requested=True)
    database.execute("UPDATE tensile.jobs SET priority = 7 WHERE id = %s", kept)
    # Of a job that is to end there is nothing else to be told.
    database.execute(
        "UPDATE tensile.jobs SET pause_requested = true WHERE id = ANY (%s)", [paused, cancelled]
    )
    with engine.begin() as conn:
        pulse = leases.pulse(conn, worker=worker, attempts={kept: 1, cancelled: 1, lost: 1, paused: 1})
    assert pulse.lost == (lost,)
    assert (pulse.asked.cancel, pulse.asked.pause) == ((cancelled,), (paused,))
    assert pulse.asked.priorities == ((kept, 7), (cancelled, 0), (paused, 0))
    row = database.execute(
        "SELECT now() - heartbeat_at < '30 s' AS renewed FROM tensile.jobs WHERE id = %s", kept
    )
    assert row == [{"renewed": True}]


def test_an_owner_who_keeps_a_jobs_row_locked_delays_no_other_jobs_lease(database, engine):
    kept, locked = database.submit("points"), database.submit("points")
    worker = register(engine, 1)
    claim(engine, worker)
    silence(database, kept)
    silence(database, locked)
    with psycopg.connect(database.admin) as connection:
        connection.execute("UPDATE tensile.jobs SET cancel_requested = true WHERE id = %s", [locked])
        with engine.begin() as conn:
            conn.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
            pulse = leases.pulse(conn, worker=worker, attempts={kept: 1, locked: 1})
        assert (pulse.asked.cancel, pulse.lost) == ((), ())
        # Nor is it claimed, though its lease has run out.
        assert claim(engine, register(engine, 2)) == []
    with engine.begin() as conn:
        assert leases.pulse(conn, worker=worker, attempts={kept: 1, locked: 1}).asked.cancel == (locked,)


def test_a_transaction_that_saves_weights_delays_neither_heartbeats_nor_a_takeover(database, engine):
    submitted = database.submit("points")
    worker = register(engine, 1)
    (job,) = claim(engine, worker)
    with psycopg.connect(database.admin) as connection:
        # What refers to a job keeps a lock on the job's row until its transaction ends.
        connection.execute(
            "INSERT INTO tensile.models"
            " (name, version, owned_by, owner, job_id, architecture, task, features, parameter_nbytes)"
            " SELECT 'm', 1, submitted_by, owner, id, 'mlp', 'classification', '{}', 0"
            " FROM tensile.jobs"
        )
        silence(database, submitted)
        with engine.begin() as conn:
            leases.pulse(conn, worker=worker, attempts={submitted: 1})
        assert claim(engine, register(engine, 2)) == []
        with engine.begin() as conn:
            conn.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
            fence.hold(conn, job.fence)
        silence(database, submitted)
        assert [found.attempt for found in claim(engine, register(engine, 3))] == [2]


def test_a_worker_leaves_jobs_alone_that_it_runs_already(database, engine):
    held, other = database.submit("points"), database.submit("points")
    worker = register(engine, 1)
    claim(engine, worker, limit=1)
    silence(database, held)
    with engine.begin() as conn:
        sound, _ = leases.claim(conn, worker=worker, device="cpu", limit=9, lease_s=30.0, held=[held])
    assert [job.id for job in sound] == [other]
    # What nobody took meanwhile is its own still.
    with engine.begin() as conn:
        assert leases.pulse(conn, worker=worker, attempts={held: 1}).lost == ()


def test_a_job_that_was_given_back_is_claimed_by_the_next(database, engine):
    submitted = database.submit("points")
    (job,) = claim(engine, register(engine, 1))
    with engine.begin() as conn:
        jobs.give_back(conn, job.fence)
    assert database.job(submitted)["state"] == "queued"
    assert [found.attempt for found in claim(engine, register(engine, 2))] == [2]


def test_jobs_of_a_dead_worker_can_be_had_at_once(database, engine):
    job = database.submit("points")
    dead = register(engine, 1)
    claim(engine, dead)
    with engine.begin() as conn:
        leases.expire(conn, [dead])
    assert [found.id for found in claim(engine, register(engine, 2))] == [job]


def test_a_job_left_behind_whose_owner_wants_it_stopped_is_cancelled_not_run(database, engine):
    job = database.submit("points")
    claim(engine, register(engine, 1))
    database.ask(job, cancel_requested=True)
    silence(database, job)
    assert claim(engine, register(engine, 2)) == []
    assert (database.job(job)["state"], database.job(job)["error_sqlstate"]) == ("cancelled", "57014")


def lose(database, engine, job, times):
    for pid in range(times):
        silence(database, job)
        claim(engine, register(engine, pid + 2))


def test_a_job_that_loses_worker_after_worker_is_not_run_again(database, engine):
    job = database.submit("points")
    claim(engine, register(engine, 1))
    lose(database, engine, job, 4)
    silence(database, job)
    with engine.begin() as conn:
        sound, poisonous = leases.claim(conn, worker=register(engine, 9), device="cpu", limit=1, lease_s=30.0)
    assert (sound, [found.id for found in poisonous]) == ([], [job])


def test_a_checkpoint_between_losses_shows_that_the_job_gets_on(database, engine):
    job = database.submit("points")
    claim(engine, register(engine, 1))
    lose(database, engine, job, 4)
    silence(database, job)
    database.execute("INSERT INTO tensile.job_events (job_id, kind) VALUES (%s, 'checkpoint')", job)
    assert [found.id for found in claim(engine, register(engine, 9))] == [job]


def test_a_stale_attempt_cannot_complete_a_checkpoint(database, engine):
    job = database.submit("points")
    (before,) = claim(engine, register(engine, 1))
    with engine.begin() as conn:
        begun = checkpoints.begin(conn, before.fence, iteration=3, random_state=b"r", detail={})
    silence(database, job)
    claim(engine, register(engine, 2))
    with pytest.raises(LostLease), engine.begin() as conn:
        checkpoints.complete(conn, before.fence, begun, iteration=3)
    with engine.begin() as conn:
        assert checkpoints.newest(conn, job) is None


@pytest.mark.parametrize(
    ("asked", "state"),
    [
        ("pause_requested = true", "paused"),
        ("pause_requested = true, cancel_requested = true", "cancelled"),
        ("cancel_requested = true", "cancelled"),
        ("pause_requested = false", "queued"),
    ],
)
def test_a_job_that_is_let_go_becomes_what_its_owner_asks_for(database, engine, asked, state):
    submitted = database.submit("points")
    (job,) = claim(engine, register(engine))
    database.execute(f"UPDATE tensile.jobs SET {asked} WHERE id = %s", submitted)
    assert database.job(submitted)["state"] == "running"
    with engine.begin() as conn:
        jobs.give_back(conn, job.fence)
    row = database.job(submitted)
    assert (row["state"], row["worker_id"], row["budget_nbytes"]) == (state, None, None)
    assert last_event(database) == {"queued": "requeued"}.get(state, state)
    assert [found.id for found in claim(engine, register(engine))] == (
        [submitted] if state == "queued" else []
    )


def test_a_job_left_behind_that_is_to_rest_is_paused_not_run(database, engine):
    job = database.submit("points")
    claim(engine, register(engine, 1))
    database.ask(job, pause_requested=True)
    silence(database, job)
    assert claim(engine, register(engine, 2)) == []
    row = database.job(job)
    assert (row["state"], row["worker_id"], last_event(database)) == ("paused", None, "paused")
    database.ask(job, pause_requested=False)
    assert [found.attempt for found in claim(engine, register(engine, 3))] == [2]


@pytest.mark.parametrize(
    "end", [jobs.cancel, partial(jobs.fail, sqlstate="22003", message="the loss became NaN", hint="")]
)
def test_a_job_that_was_cancelled_or_failed_keeps_no_checkpoint(database, engine, end):
    submitted = database.submit("points")
    (job,) = claim(engine, register(engine))
    with engine.begin() as conn:
        checkpoints.begin(conn, job.fence, iteration=3, random_state=b"r", detail={})
        end(conn, job.fence)
    assert database.execute("SELECT * FROM tensile.checkpoints WHERE job_id = %s", submitted) == []


def last_event(database):
    return database.execute("SELECT kind FROM tensile.job_events ORDER BY id DESC LIMIT 1")[0]["kind"]


def test_a_search_is_not_taken_for_what_its_workers_die_of(database, engine):
    search = database.submit("points", kind="search")
    train = database.submit("points")
    poisonous = []
    for number in range(leases.MAX_LOSSES + 1):
        for job in (search, train):
            silence(database, job)
        with engine.begin() as conn:
            poisonous.append(
                [job.id for job in leases.claim(conn, worker=number, device="cpu", limit=9, lease_s=30.0)[1]]
            )
    assert poisonous == [[]] * leases.MAX_LOSSES + [[train]]


@contextmanager
def locked_by_the_owner(database, jobs_):
    """Keep a transaction of the user open that has locked rows of jobs."""
    with psycopg.connect(psycopg.conninfo.make_conninfo(database.admin, user="anna")) as owner:
        owner.execute("SELECT FROM tensile.jobs WHERE id = ANY (%s) FOR NO KEY UPDATE", [jobs_])
        yield
        owner.rollback()


def test_a_row_that_its_owner_has_locked_keeps_no_worker_from_starting(database, engine):
    locked, free = database.submit("points"), database.submit("points")
    gone = register(engine, 1)
    claim(engine, gone)
    with locked_by_the_owner(database, [locked]), engine.begin() as conn:
        conn.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
        assert leases.expire(conn, [gone]) == 1
    assert [job.id for job in claim(engine, register(engine, 2))] == [free]


def test_a_row_that_its_owner_has_locked_does_not_stop_the_line(database, engine):
    job = database.submit("points")
    (row,) = claim(engine, register(engine))
    with locked_by_the_owner(database, [job]), engine.begin() as conn:
        conn.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
        jobs.hold_in_line(conn, row.fence, "waits")
    assert database.job(job)["state"] == "running"
    with engine.begin() as conn:
        jobs.hold_in_line(conn, row.fence, "waits")
    assert database.job(job)["state"] == "waiting"
    database.execute("UPDATE tensile.jobs SET attempt = 2 WHERE id = %s", job)
    with pytest.raises(LostLease), engine.begin() as conn:
        jobs.hold_in_line(conn, row.fence, "waits")
