"""A standby, and a server that becomes one for a while: what users are told, and what workers do."""

import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tensile_db.local import LocalCluster
from tests import throw_away
from tests.fixtures.worker import Database, make_template


class Standby:
    """A server of its own, which becomes a standby of nobody at will."""

    def __init__(self, folder):
        self.cluster = LocalCluster(folder, durable=False)
        self.cluster.create()
        with (self.cluster.data / "postgresql.conf").open("a") as settings:
            # A private server's log is not enough for a standby.
            settings.write("wal_level = replica\n")
        self.cluster.start()
        name = make_template(self.cluster, "site")
        self.database = Database(
            admin=self.cluster.dsn(dbname=name), worker=self.cluster.dsn(user="worker_login", dbname=name)
        )
        self.anna = make_conninfo(self.database.admin, user="anna")

    def demote(self):
        self.cluster.stop()
        (self.cluster.data / "standby.signal").touch()
        self.cluster.start()

    def promote(self):
        self.cluster._pg_ctl("promote", "--wait", timeout_s=60)


@pytest.fixture
def standby():
    with throw_away.server_folder("tensile-standby-") as folder:
        made = Standby(folder)
        yield made
        made.database.close()
        made.cluster.remove()


@pytest.fixture
def database(standby):
    return standby.database


def test_a_standby_says_what_it_is_and_where_to_go(standby):
    job = standby.database.submit("points")
    with psycopg.connect(standby.anna, options="-c default_transaction_read_only=on") as connection:
        with pytest.raises(
            psycopg.errors.ReadOnlySqlTransaction, match="the transaction is read-only"
        ) as caught:
            connection.execute(f"SELECT tensile_cancel({job})")
        assert caught.value.diag.message_hint.startswith("SET TRANSACTION READ WRITE")
    standby.demote()
    with psycopg.connect(standby.anna, autocommit=True) as connection:
        for statement in ("SELECT tensile_submit('mlp', 'points')", f"SELECT tensile_cancel({job})"):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught:
                connection.execute(statement)
            assert caught.value.diag.message_primary == (
                "this server is a standby, on which nothing can be written"
            )
            assert "Connect to the primary" in caught.value.diag.message_hint
        found = connection.execute('SELECT "check", status, found FROM tensile_doctor()').fetchall()
        (server,) = [each for each in found if each[0] == "server"]
        assert server[1] == "warning"
        assert server[2].endswith(", a standby")
        # What only reads, works.
        assert connection.execute("SELECT count(*) FROM tensile_models()").fetchone() == (0,)


@pytest.mark.thorough
def test_a_worker_waits_for_a_standby_and_goes_on_with_the_job_of_before(standby, start_worker):
    database = standby.database
    start_worker()
    job = database.submit("points", epochs=1_000_000)
    begun = database.wait_until(job, lambda row: (row["iteration"] or 0) > 0)
    standby.demote()
    # Long enough for all of the worker's threads to be sent away.
    time.sleep(3)
    with psycopg.connect(database.admin) as connection:
        (before,) = connection.execute("SELECT iteration FROM tensile.jobs WHERE id = %s", [job]).fetchone()
    standby.promote()
    later = database.wait_until(job, lambda row: (row["iteration"] or 0) > before)
    assert (later["state"], later["attempt"]) == ("running", begun["attempt"])
    # It is woken for others, too.
    small = database.submit("points", epochs=1)
    assert database.wait(small)["state"] == "succeeded"
    database.ask(job, cancel_requested=True)
    assert database.wait(job)["state"] == "cancelled"
