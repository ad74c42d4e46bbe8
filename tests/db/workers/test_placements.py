"""What the catalog tells of workers and of the jobs that wait, from which it follows where a job goes."""

import logging
import time

from tensile_db.catalog import jobs, leases, workers
from tests.fixtures.claims import MIB, live, needs, take


def test_an_offer_tells_what_a_worker_holds(database, engine, join):
    first = join(max_jobs=3, cache="x", flops_per_s=7)
    join(runs_alone=True)
    for _ in range(2):
        database.submit("points")
    search = database.submit("points", kind="search")
    with engine.begin() as conn:
        claimed, _ = leases.claim(conn, worker=1, device="cpu", limit=9, lease_s=30.0)
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
    frozen = database.submit("points", options={"hidden_units": [8], "freeze_backbone": True})
    database.execute(
        "UPDATE tensile.jobs SET rows_cache = 'x', iteration = 4, needed_nbytes = 99, meant_for = 1,"
        " vanilla_peak_nbytes = 600 WHERE id = %s",
        limited,
    )
    found = needs(engine)
    assert list(found) == [plain, limited, unknown, frozen]
    assert (found[plain].likely_least_nbytes, found[plain].wanted_nbytes, found[plain].least_nbytes) == (
        300,
        700,
        0,
    )
    assert (found[plain].begun, found[plain].caches, found[plain].meant_for) == (False, frozenset(), None)
    assert (found[limited].wanted_nbytes, found[limited].least_nbytes) == (500, 99)
    assert (found[limited].begun, found[limited].caches, found[limited].meant_for) == (True, {"x"}, 1)
    for job in (unknown, frozen):
        assert (found[job].wanted_nbytes, found[job].likely_least_nbytes) == (None, 0)


def test_a_plan_that_held_less_than_whole_ops_can_tells_what_does(database, engine, join):
    join()
    for version_nbytes in ((300, 200), (300, 900)):
        job = database.submit("points")
        database.execute(
            "UPDATE tensile.jobs SET state = 'succeeded', vanilla_peak_nbytes = 900 WHERE id = %s", job
        )
        database.execute(
            "INSERT INTO tensile.plans (job_id, version, policy, reason, lower_bound_peak_nbytes,"
            " guaranteed_peak_nbytes) VALUES (%s, 1, 'auto', 'cold_start', %s, %s)",
            job,
            *version_nbytes,
        )
        waiting = database.submit("points")
        assert needs(engine)[waiting].likely_least_nbytes == min(version_nbytes)
        database.execute("DELETE FROM tensile.jobs WHERE id = %s", waiting)


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


def test_a_job_that_only_the_slow_one_is_large_enough_for_waits_until_it_is_lost(database, join):
    # The faster one too, so that nothing goes to the small one first.
    large, small = join(memory_nbytes=4 * MIB, flops_per_s=1000), join()
    database.submit("points")
    database.execute(
        "UPDATE tensile.jobs SET state = 'succeeded', finished_at = now(), needed_nbytes = %s", 2 * MIB
    )
    large_one = database.submit("points")
    other = database.submit("pictures")
    small._patience._grace_s = 0.0
    assert take(small) == [other]
    assert take(small) == []
    database.execute("UPDATE tensile.workers SET heartbeat_at = now() - interval '1 minute' WHERE id = 1")
    assert take(small) == [large_one]
    assert take(large) == []


def test_nobody_waits_for_a_slow_one_for_longer_than_a_lease_or_where_its_places_are_taken(database, join):
    join(memory_nbytes=4 * MIB, flops_per_s=1000, max_jobs=1)
    small = join()
    small._patience._grace_s, small._lease_s = 0.0, 0.2
    database.submit("points")
    database.execute(
        "UPDATE tensile.jobs SET state = 'succeeded', finished_at = now(), needed_nbytes = %s", 2 * MIB
    )
    job = database.submit("points")
    assert take(small) == []
    time.sleep(0.3)
    # The slow one is alive all the same.
    assert take(small) == [job]
    database.execute("UPDATE tensile.jobs SET worker_id = 1 WHERE id = %s", job)
    small._lease_s = 1e6
    again = database.submit("points")
    assert take(small) == [again]


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
