"""Jobs in line, jobs whose rows are locked, and what is told of those that wait."""

import threading
from dataclasses import replace

import psycopg
import pytest

from tensile_db.catalog import jobs, workers
from tensile_db.errors import format_nbytes
from tensile_db.scheduler.placing import place
from tests.at_once import at_once
from tests.fixtures.claims import MIB, live, needs, take


def test_a_job_in_line_is_given_to_a_worker_that_has_nothing_to_do(database, engine, join):
    first = join()
    waits, stays = (database.submit("points") for _ in range(2))
    rows = first.take(limit=9, held=())
    with engine.begin() as conn:
        for row in rows:
            jobs.hold_in_line(conn, row.fence, "waits")
    assert first.find_better_off(rows) == []
    second = join(flops_per_s=1)
    join(memory_nbytes=MIB - 1)
    assert first.find_better_off(rows) == [waits]
    assert first.find_better_off([]) == []
    with engine.begin() as conn:
        jobs.give_back(conn, rows[0].fence)
    assert database.job(waits)["meant_for"] == 2
    assert take(first, held=[stays]) == []
    assert take(second) == [waits]
    assert database.job(waits)["meant_for"] is None


def test_a_job_in_line_that_its_owner_locks_is_not_waited_for(database, engine, join, caplog):
    first = join()
    job = database.submit("points")
    (row,) = first.take(limit=9, held=())
    with engine.begin() as conn:
        jobs.hold_in_line(conn, row.fence, "waits")
    join()
    with psycopg.connect(database.admin) as connection:
        connection.execute("SELECT FROM tensile.jobs WHERE id = %s FOR UPDATE", [job])
        assert first.find_better_off([row]) == []
    assert caplog.messages == [], "it ran into the limit on locks"
    assert first.find_better_off([row]) == [job]
    assert first.find_better_off([replace(row, attempt=2)]) == []


def test_a_job_that_its_owner_locks_does_not_keep_others_from_being_placed(database, engine, join):
    first, _ = join(), join()
    for _ in range(4):
        database.submit("points")
    with psycopg.connect(database.admin) as connection:
        connection.execute("SELECT FROM tensile.jobs WHERE id = 1 FOR UPDATE")
        assert take(first) == [3]


def test_placing_is_the_same_for_all_who_look(engine, database, join):
    join()
    join(memory_nbytes=3 * MIB, flops_per_s=2)
    for _ in range(7):
        database.submit("points")
    looks = [place(list(needs(engine).values()), live(engine).values()) for _ in range(2)]
    assert looks[0] == looks[1]
    assert sorted(placement.worker for placement in looks[0]) == [1, 1, 2, 2, 2, 2, 2]


def reasons(database):
    """Return why each job waits, as an administrator sees it."""
    return {row["job_id"]: row for row in database.execute("SELECT * FROM tensile.queue")}


def test_the_queue_says_what_each_job_waits_for(database, engine, join):
    plain, named, large = (
        database.submit("points", options=options) for options in ({}, {"device": "cuda:3"}, {})
    )
    database.execute("UPDATE tensile.jobs SET needed_nbytes = %s WHERE id = %s", 3 * MIB, large)
    found = reasons(database)
    assert [found[job]["wait_reason"] for job in (plain, named)] == [
        "waits for a worker: none is alive",
        'waits for a worker with device "cuda:3": none is alive',
    ]
    first = join(max_jobs=1)
    found = reasons(database)
    assert [found[job]["wait_reason"] for job in (plain, named, large)] == [
        None,
        'waits for a worker with device "cuda:3": none is alive',
        "waits for a device with 3.0 MiB",
    ]
    assert take(first, limit=1) == [plain]
    later = database.submit("points")
    search = database.submit("points", kind="search")
    found = reasons(database)
    assert found[later]["wait_reason"] == "waits for a worker that can take one more job"
    assert found[search]["wait_reason"] == found[later]["wait_reason"]
    with engine.begin() as conn:
        row = jobs.Fence(job=plain, worker=1, attempt=1)
        jobs.hold_in_line(conn, row, "waits for device memory")
    found = reasons(database)
    assert (found[plain]["wait_reason"], found[plain]["worker_id"]) == ("waits for device memory", 1)
    database.execute("UPDATE tensile.jobs SET meant_for = 2 WHERE id = %s", later)
    join()
    assert reasons(database)[later]["wait_reason"] == "goes to worker 2, which has room"


def test_the_doctor_says_who_holds_what_and_which_jobs_nobody_can_take(database, engine, join):
    first = join(memory_nbytes=2 * MIB)
    held, large = database.submit("points"), database.submit("points")
    assert take(first, limit=1) == [held]
    database.execute("UPDATE tensile.jobs SET needed_nbytes = %s WHERE id = %s", 3 * MIB, large)
    with engine.begin() as conn:
        use = workers.DeviceUse(used_nbytes=1, peak_nbytes=2, shared_nbytes=MIB, utilization=None)
        workers.write_use(conn, 1, use)
    found = database.execute('SELECT "check", status, found FROM tensile_doctor()')
    (worker,) = [row for row in found if row["check"] == "worker"]
    assert worker["found"].endswith("2.0 MiB, ready, holds 1 jobs, 0 in line, in 1.0 MiB")
    (job,) = [row for row in found if row["check"] == "job"]
    assert (job["status"], job["found"]) == ("warning", f"{large} waits for a device with 3.0 MiB")


def test_sizes_are_written_alike_in_sql_and_elsewhere(database):
    sizes = [0, 1023, 1024, 1536, 2**20 - 1, 3 * 2**20, 2**30, 5 * 2**40]
    for nbytes in sizes:
        (row,) = database.execute("SELECT tensile.format_nbytes(%s) AS text", nbytes)
        assert row["text"] == format_nbytes(nbytes)


def test_workers_that_look_at_the_same_moment_never_take_the_same_job(database, join):
    submitted = [database.submit("points") for _ in range(24)]
    taken = {claims: [] for claims in (join(max_jobs=99), join(max_jobs=99), join(max_jobs=99))}
    start = threading.Barrier(3)

    def work(claims):
        claims._patience._grace_s = 0.0
        start.wait()
        for _ in range(12):
            taken[claims] += take(claims, limit=3)

    at_once(work, taken)
    assert sorted(job for mine in taken.values() for job in mine) == submitted


@pytest.mark.parametrize("number", [4, 7])
def test_jobs_that_their_owner_has_locked_take_nobodys_place(database, engine, join, number):
    """Else as many of them as there are places would keep all others waiting for as long as she likes."""
    claims = [join(max_jobs=2), join(max_jobs=2)]
    locked = [database.submit("points") for _ in range(number)]
    other = database.submit("points")
    with psycopg.connect(psycopg.conninfo.make_conninfo(database.admin, user="anna")) as owner:
        owner.execute("SELECT FROM tensile.jobs WHERE id = ANY (%s) FOR UPDATE", [locked])
        taken = [job for _ in range(number) for one in claims for job in take(one, limit=2)]
        assert taken == [other]
        owner.rollback()
    assert {job for _ in range(number) for one in claims for job in take(one, limit=2)} == set(locked)
