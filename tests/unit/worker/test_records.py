import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from tensile_db.worker.jobs.records import is_connection_loss


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


@pytest.mark.parametrize(
    "error", [errors.UniqueViolation("twice"), errors.InsufficientPrivilege("no"), errors.DiskFull("full")]
)
def test_a_refused_statement_is_no_loss_of_the_connection(error):
    assert not is_connection_loss(error)
    assert not is_connection_loss(wrapped(error))
