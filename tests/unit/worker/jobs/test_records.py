from contextlib import contextmanager
from types import SimpleNamespace

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from tensile_db.worker.jobs import records
from tensile_db.worker.jobs.records import Records, is_connection_loss, is_passing


def wrapped(error):
    return DBAPIError.instance("SELECT 1", None, error, psycopg.Error)


@pytest.mark.parametrize(
    "error",
    [
        errors.AdminShutdown("going"),
        errors.CannotConnectNow("starting"),
        errors.ConnectionFailure("gone"),
        errors.TooManyConnections("full"),
        psycopg.OperationalError("server closed the connection unexpectedly"),
    ],
)
def test_a_server_that_is_away_is_told_from_a_refusal(error):
    assert is_connection_loss(error)
    assert is_connection_loss(wrapped(error))
    assert is_passing(error)


@pytest.mark.parametrize(
    "error", [errors.UniqueViolation("twice"), errors.InsufficientPrivilege("no"), errors.OutOfMemory("full")]
)
def test_a_refused_statement_is_no_loss_of_the_connection(error):
    assert not is_connection_loss(error)
    assert not is_connection_loss(wrapped(error))
    assert not is_passing(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.DeadlockDetected("met"),
        errors.SerializationFailure("met"),
        errors.LockNotAvailable("held"),
        errors.DiskFull("full"),
        errors.QueryCanceled("by an administrator"),
    ],
)
def test_what_comes_of_others_is_over_by_itself(error):
    assert not is_connection_loss(error)
    assert is_passing(error)
    assert is_passing(wrapped(error))


class Colliding:
    """An engine whose transactions fail as they are told to, before they carry anything out."""

    def __init__(self, *failures):
        self._failures = list(failures)
        self.begun = 0

    @contextmanager
    def begin(self):
        self.begun += 1
        if self._failures:
            raise wrapped(self._failures.pop(0))
        yield self


def test_what_must_be_written_is_tried_again_after_a_deadlock(monkeypatch):
    monkeypatch.setattr(records, "_FIRST_PAUSE_S", 0.0)
    engine = Colliding(errors.DeadlockDetected("met"), errors.DeadlockDetected("met"))
    assert Records(engine, SimpleNamespace(job=1), give_up=lambda: False).must(lambda conn: conn.begun) == 3


@pytest.mark.parametrize("error", [errors.DeadlockDetected, errors.QueryCanceled])
def test_after_a_few_failures_it_is_given_up_where_there_is_no_point(monkeypatch, error):
    monkeypatch.setattr(records, "_FIRST_PAUSE_S", 0.0)
    engine = Colliding(*[error("met")] * 9)
    with pytest.raises(DBAPIError, match="met"):
        Records(engine, SimpleNamespace(job=1), give_up=lambda: True).must(lambda conn: conn.begun)
    assert engine.begun == 4


def test_who_will_not_wait_for_a_lock_hears_of_it(monkeypatch):
    monkeypatch.setattr(records, "_FIRST_PAUSE_S", 0.0)
    engine = Colliding(errors.LockNotAvailable("held"), errors.LockNotAvailable("held"))
    kept = Records(engine, SimpleNamespace(job=1), give_up=lambda: False)
    with pytest.raises(DBAPIError, match="held"):
        kept.must(lambda conn: conn.begun, waits_for_locks=False)
    assert kept.must(lambda conn: conn.begun) == 3


def test_records_of_progress_are_kept_over_a_deadlock_and_a_lock():
    engine = Colliding(errors.DeadlockDetected("met"), errors.LockNotAvailable("held"))
    kept = Records(engine, SimpleNamespace(job=1), give_up=lambda: False)
    written = []
    kept.later(lambda conn: written.append(conn.begun))
    for _ in range(3):
        kept.flush()
    assert written == [3]
