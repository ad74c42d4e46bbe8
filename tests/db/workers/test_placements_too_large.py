"""Jobs that are too large for a device: passed on, waited for, refused."""

import pytest

from tensile_db.catalog import leases
from tensile_db.errors import DoesNotFit
from tensile_db.worker.refusals import refuse
from tests.fixtures.claims import MIB, take


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
    for _ in range(leases.MAX_LOSSES + 1):
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
