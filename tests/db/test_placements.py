"""What the catalog tells of workers and of the jobs that wait, from which it follows where a job goes."""

import logging
import threading
from dataclasses import replace

import psycopg
import pytest

from tensile_db.catalog import jobs, placements, workers
from tensile_db.errors import DoesNotFit, format_nbytes
from tensile_db.scheduler.placing import place
from tensile_db.worker.claims import Claims
from tensile_db.worker.refusals import refuse
from tests.fix_worker import DEVICE

MIB = 2**20


@pytest.fixture
def join(engine):
    """Register workers that are ready; return what claims for each."""

    def join(*, name="cpu", memory_nbytes=MIB, flops_per_s=1, lease_s=30.0, **terms):
        device = replace(DEVICE, name=name, memory_nbytes=memory_nbytes, flops_per_s=flops_per_s)
        with engine.begin() as conn:
            worker = workers.register(
                conn,
                host="here",
                pid=1,
                version="0",
                device=device,
                terms=workers.Terms(lease_s=lease_s, **terms),
            )
            workers.set_state(conn, worker, "ready")
        return Claims(engine=engine, worker=worker, device=device, lease_s=lease_s)

    return join


def live(engine):
    with engine.begin() as conn:
        return {found.offer.worker: found.offer for found in placements.live_workers(conn)}


def needs(engine, lease_s=30.0):
    with engine.begin() as conn:
        offers = [found.offer for found in placements.live_workers(conn)]
        return {need.job: need for need in placements.waiting(conn, offers, lease_s=lease_s)}


def take(claims, limit=16, held=()):
    return [row.id for row in claims.take(limit=limit, held=held)]


def test_an_offer_tells_what_a_worker_holds(database, engine, join):
    first = join(max_jobs=3, cache="x", flops_per_s=7)
    join(runs_alone=True)
    for _ in range(2):
        database.submit("points")
    search = database.submit("points", kind="search")
    with engine.begin() as conn:
        claimed, _ = jobs.claim(conn, worker=1, device="cpu", limit=9, lease_s=30.0)
        jobs.hold_in_line(conn, claimed[0].fence, "waits")
        workers.write_use(
            conn, 1, workers.DeviceUse(used_nbytes=1, peak_nbytes=2, shared_nbytes=5, utilization=None)
        )
    assert search in [row.id for row in claimed]
    offer = live(engine)[1]
    assert (offer.held, offer.preparing, offer.in_line, offer.places) == (2, 1, 1, 3)
    assert (offer.shared_nbytes, offer.memory_nbytes, offer.flops_per_s, offer.cache) == (5, MIB, 7, "x")
    assert [offer.alone for offer in live(engine).values()] == [False, True]
    first.stop()
    assert list(live(engine)) == [2]


def test_a_silent_worker_offers_nothing_by_its_own_lease(database, engine, join):
    join(lease_s=30.0)
    join(lease_s=300.0)
    database.execute("UPDATE tensile.workers SET heartbeat_at = now() - interval '1 minute'")
    assert list(live(engine)) == [2]


def test_what_is_known_of_a_job_that_waits(database, engine, join):
    join(cache="x")
    like = database.submit("points", options={"hidden_units": [8]})
    other = database.submit("points", options={"hidden_units": [9]})
    for job, nbytes in ((like, 700), (other, 1400)):
        database.execute(
            "UPDATE tensile.jobs SET state = 'succeeded', phase = 'done', vanilla_peak_nbytes = %s"
            " WHERE id = %s",
            nbytes,
            job,
        )
        database.execute(
            "INSERT INTO tensile.plans (job_id, version, policy, reason, lower_bound_peak_nbytes)"
            " VALUES (%s, 1, 'auto', 'cold_start', 300)",
            job,
        )
    plain = database.submit("points", options={"hidden_units": [8], "dropout": 0.5})
    limited = database.submit("points", options={"hidden_units": [9]}, memory_limit_nbytes=500)
    unknown = database.submit("pictures", options={"hidden_units": [8]}, memory_limit_nbytes=500)
    database.execute(
        "UPDATE tensile.jobs SET rows_cache = 'x', iteration = 4, needed_nbytes = 99, meant_for = 1,"
        " vanilla_peak_nbytes = 600 WHERE id = %s",
        limited,
    )
    found = needs(engine)
    assert list(found) == [plain, limited, unknown]
    assert (found[plain].likely_least_nbytes, found[plain].wanted_nbytes, found[plain].least_nbytes) == (
        300,
        700,
        0,
    )
    assert (found[plain].begun, found[plain].caches, found[plain].meant_for) == (False, frozenset(), None)
    assert (found[limited].wanted_nbytes, found[limited].least_nbytes) == (500, 99)
    assert (found[limited].begun, found[limited].caches, found[limited].meant_for) == (True, {"x"}, 1)
    assert (found[unknown].wanted_nbytes, found[unknown].likely_least_nbytes) == (None, 0)


def test_trials_are_drawn_to_whoever_has_their_searchs_rows(database, engine, join):
    join()
    search = database.submit("points", kind="search")
    trials = [database.submit("points", search_id=search) for _ in range(3)]
    database.execute("UPDATE tensile.jobs SET rows_cache = 'x' WHERE id = %s", trials[0])
    found = needs(engine)
    assert [found[job].caches for job in trials] == [{"x"}] * 3
    assert not found[search].takes_place
    assert found[search].caches == frozenset()


def test_jobs_that_nobody_could_take_hide_none_that_somebody_could(database, engine, join):
    join()
    join(name="other", max_jobs=0)
    for options in [{"device": "cuda:7"}, {"device": "other"}] * 5:
        database.submit("points", options=options)
    large = database.submit("points")
    database.execute("UPDATE tensile.jobs SET needed_nbytes = %s WHERE id = %s", 2 * MIB, large)
    job = database.submit("points")
    assert list(needs(engine)) == [job]


def test_workers_with_devices_of_one_name_share_the_jobs(database, join):
    first, second = join(), join()
    submitted = [database.submit("points") for _ in range(6)]
    taken = [take(first), take(second)]
    assert [len(mine) for mine in taken] == [3, 3]
    assert sorted(taken[0] + taken[1]) == submitted


def test_a_worker_alone_takes_all_that_it_may_hold_at_once(database, join):
    (only,) = [join()]
    submitted = [database.submit("points") for _ in range(4)]
    assert take(only) == submitted


def test_a_job_that_another_worker_leaves_is_taken_after_a_while(database, join):
    first, second = join(), join()
    job = database.submit("points")
    assert take(second) == []
    # The first is suspended.
    second._patience._grace_s = 0.0
    assert take(second) == [job]
    assert take(first) == []


def test_who_left_a_job_is_passed_over_until_it_is_heard_of_again(database, join, caplog):
    _, second = join(), join()
    database.submit("points")
    second._patience._grace_s = 0.0
    with caplog.at_level(logging.WARNING):
        take(second)
        assert len(caplog.messages) == 1
        second._patience._grace_s = 1e6
        job = database.submit("points")
        assert take(second) == [job]
    database.execute("UPDATE tensile.workers SET heartbeat_at = now() WHERE id = 1")
    database.submit("points")
    assert take(second) == []


def test_jobs_of_a_worker_that_is_lost_belong_to_another(database, join):
    first, second = join(), join()
    database.submit("points", options={"device": "cpu"})
    (job,) = take(first)
    database.execute("UPDATE tensile.jobs SET heartbeat_at = now() - interval '1 minute'")
    database.execute("UPDATE tensile.workers SET heartbeat_at = now() - interval '1 minute' WHERE id = 1")
    assert take(second) == [job]


def test_a_worker_that_is_taken_for_lost_waits_for_nobody(database, join):
    join()
    second = join()
    database.execute("UPDATE tensile.workers SET heartbeat_at = now() - interval '1 minute' WHERE id = 2")
    job = database.submit("points")
    assert take(second) == [job]


def refuse_first(engine, claims, needed_nbytes, device_nbytes=MIB):
    """Claim the first job and find it too large; return whether it was passed on."""
    (row,) = claims.take(limit=1, held=())
    refusal = DoesNotFit(needed_nbytes=needed_nbytes, budget_nbytes=device_nbytes)
    with engine.begin() as conn:
        return refuse(conn, row.fence, refusal, device_nbytes=device_nbytes)


def test_a_job_that_is_too_large_waits_for_the_worker_that_can_take_it(database, engine, join):
    small, job = join(), database.submit("points")
    large = join(memory_nbytes=4 * MIB, max_jobs=0)
    assert refuse_first(engine, small, 3 * MIB)
    row = database.job(job)
    assert (row["state"], row["wait_reason"], row["needed_nbytes"]) == (
        "queued",
        "waits for a device with 3.0 MiB",
        3 * MIB,
    )
    small._patience._grace_s = 0.0
    assert take(small) == []
    database.execute("UPDATE tensile.workers SET max_jobs = 1 WHERE id = 2")
    assert take(large) == [job]


@pytest.mark.parametrize(
    ("request_", "hint"),
    [
        ({}, "  The largest device of a worker that is alive has 2.0 MiB."),
        ({"options": {"device": "cpu"}}, "  The largest device of a worker that is alive has 2.0 MiB."),
        ({"memory_limit_nbytes": 3 * MIB - 1}, "  The largest device of a worker that is alive has 2.0 MiB."),
    ],
)
def test_a_job_that_is_too_large_for_every_device_fails(database, engine, join, request_, hint):
    small = join()
    job = database.submit("points", **request_)
    join(memory_nbytes=2 * MIB, max_jobs=0)
    assert not refuse_first(engine, small, 3 * MIB)
    row = database.job(job)
    assert (row["state"], row["error_sqlstate"], row["needed_nbytes"]) == ("failed", "53200", 3 * MIB)
    assert (
        row["error_message"] == "the job needs at least 3.0 MiB of device memory, but the budget is 1.0 MiB"
    )
    assert row["error_hint"].endswith(hint)


@pytest.mark.parametrize("request_", [{"options": {"device": "cpu"}}, {"memory_limit_nbytes": 3 * MIB - 1}])
def test_a_job_that_may_not_go_to_the_larger_device_fails(database, engine, join, request_):
    small = join()
    job = database.submit("points", **request_)
    join(name="gpu", memory_nbytes=8 * MIB, max_jobs=0)
    if "options" not in request_:
        join(memory_nbytes=8 * MIB, max_jobs=0)
    assert not refuse_first(engine, small, 3 * MIB)
    assert database.job(job)["state"] == "failed"


def test_a_job_whose_own_limit_is_too_small_is_not_passed_on(database, engine, join):
    small = join()
    job = database.submit("points", memory_limit_nbytes=100)
    join(memory_nbytes=8 * MIB, max_jobs=0)
    assert not refuse_first(engine, small, 200, device_nbytes=MIB)
    assert database.job(job)["state"] == "failed"


def test_passing_on_is_no_loss_of_a_worker(database, engine, join):
    small, large = join(), join(memory_nbytes=4 * MIB, max_jobs=0)
    job = database.submit("points")
    for _ in range(jobs.MAX_LOSSES + 1):
        assert refuse_first(engine, small, 3 * MIB)
        database.execute("UPDATE tensile.jobs SET needed_nbytes = NULL")
    database.execute("UPDATE tensile.workers SET max_jobs = 1 WHERE id = 2")
    database.execute("UPDATE tensile.jobs SET needed_nbytes = 2")
    small.stop()
    assert take(large) == [job]


def test_when_no_large_device_comes_back_the_job_fails(database, engine, join):
    small = join(lease_s=30.0)
    join(memory_nbytes=4 * MIB, max_jobs=0)
    job, later = database.submit("points"), database.submit("points")
    assert refuse_first(engine, small, 3 * MIB)
    database.execute("UPDATE tensile.workers SET state = 'gone' WHERE id = 2")
    assert take(small) == [later]
    assert database.job(job)["state"] == "queued"
    small._lease_s = 0.0
    assert take(small, held=[later]) == []
    row = database.job(job)
    assert (row["state"], row["error_sqlstate"]) == ("failed", "53200")
    assert (
        row["error_message"] == "the job needs at least 3.0 MiB of device memory, but the budget is 1.0 MiB"
    )


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

    threads = [threading.Thread(target=work, args=(claims,)) for claims in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
