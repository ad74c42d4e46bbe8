"""What a worker's connections are made with."""

from types import SimpleNamespace

import psycopg
import pytest
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict

from tensile_db.catalog.engine import connect


class Connection:
    """A connection to a server of some version, made in vain."""

    def __init__(self, server_version):
        self.info = SimpleNamespace(server_version=server_version)
        self.adapters = AdaptersMap(psycopg.adapters)
        self.autocommit = True
        self.said = []

    def execute(self, statement):
        # Else a rollback would take it back.
        assert self.autocommit
        self.said.append(statement)


@pytest.fixture
def made(monkeypatch):
    """Return the connection strings of all that were made, to a server of version 17."""
    dsns = []

    def make(dsn, **_):
        dsns.append(conninfo_to_dict(dsn))
        return Connection(170002)

    monkeypatch.setattr(psycopg, "connect", make)
    monkeypatch.delenv("PGTARGETSESSIONATTRS", raising=False)
    return dsns


@pytest.mark.parametrize("dsn", ["host=a,b dbname=x", "postgresql://a,b/x"])
def test_the_host_is_one_that_may_be_written(made, dsn):
    connect(dsn, application_name="test")
    (asked,) = made
    assert (asked["host"], asked["dbname"], asked["target_session_attrs"]) == ("a,b", "x", "read-write")


def test_who_says_which_host_knows_better(made, monkeypatch):
    connect("postgresql://a,b/x?target_session_attrs=primary", application_name="test")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    connect("host=a,b", application_name="test")
    assert [dsn.get("target_session_attrs") for dsn in made] == ["primary", None]


@pytest.mark.parametrize("autocommit", [True, False])
def test_since_version_17_transactions_have_no_timeout(made, autocommit):
    connection = connect("", application_name="test", autocommit=autocommit)
    assert connection.said == ["SET transaction_timeout = 0"]
    assert connection.autocommit == autocommit


def test_older_servers_are_not_asked_for_what_they_do_not_know(monkeypatch):
    monkeypatch.setattr(psycopg, "connect", lambda dsn, **_: Connection(160009))
    assert connect("", application_name="test").said == []
