"""A database with tensile_db as its users see it, and a puppet that plays their worker.

Databases are copies of one template, for an install takes a second.  Roles last as long as the cluster:
`alice` and `bob` use tensile_db, `carol` administers it, `mallory` has no right to it.
"""

import itertools
import os
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tensile_db.catalog.install import install
from tests.patience import wait_until
from tests.throw_away import KeptConnection, copied_database

_numbers = itertools.count(1)

ARCHITECTURES = (
    ("inceptionv3", "alias", "inception_v3"),
    ("mlp", "mlp", "mlp"),
    ("resnet50", "timm", "resnet50"),
    ("theirs", "plugin", "their_package:build"),
    ("vgg16", "timm", "vgg16"),
)

PUPPET_LOGIN = "puppet_login"


@dataclass(frozen=True, kw_only=True)
class Site:
    """One database, and how each role reaches it."""

    admin: str
    _kept: KeptConnection = field(init=False, repr=False)

    def __post_init__(self):
        object.__setattr__(self, "_kept", KeptConnection(self.admin))

    def dsn(self, role):
        """Return the connection string of a role."""
        return psycopg.conninfo.make_conninfo(self.admin, user=role)

    def connect(self, role, *, autocommit=True):
        """Open a connection of a role; rows are dictionaries."""
        return psycopg.connect(self.dsn(role), autocommit=autocommit, row_factory=dict_row)

    def execute(self, statement, *arguments, role=None):
        """Run a statement, in a new session of a role's or the kept one of the superuser; return its rows."""
        if role is None:
            return self._kept.execute(statement, arguments)
        with self.connect(role) as connection:
            cursor = connection.execute(statement, arguments)
            return cursor.fetchall() if cursor.description else []

    def close(self):
        """Close what is kept."""
        self._kept.close()

    def value(self, statement, *arguments, role=None):
        """Run a statement and return the only value of its only row."""
        (row,) = self.execute(statement, *arguments, role=role)
        (value,) = row.values()
        return value

    def refusal(self, statement, *arguments, role="alice"):
        """Run a statement that must fail; return its SQLSTATE, message and hint."""
        with pytest.raises(psycopg.Error) as caught:
            self.execute(statement, *arguments, role=role)
        error = caught.value
        return error.sqlstate, error.diag.message_primary, error.diag.message_hint

    def soon_after_a_job(self, action, *arguments):
        """Act, in a thread that is returned, a little after some job is there."""
        return self._soon_after("SELECT id FROM tensile.jobs", partial(action, *arguments))

    def soon_after_a_call(self, function, action):
        """Act, in a thread that is returned, a little after a session has called a function."""
        calls = (
            "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND datname = current_database()"
            f" AND pid <> pg_backend_pid() AND query LIKE '%%{function}(%%'"
        )
        return self._soon_after(calls, action)

    def _soon_after(self, seen, action):
        def run():
            wait_until(lambda: self.execute(seen), lambda: f"nothing has come of {seen}")
            time.sleep(0.4)
            action()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def job(self, job):
        """Return a job's row."""
        return self.execute("SELECT * FROM tensile.jobs WHERE id = %s", job)[0]


class PlayedWorker:
    """A worker without a device: a thread that plays again and again; what it raises, the test raises."""

    def __init__(self, site):
        self._stop = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="played-worker")
        self.connection = site.connect(PUPPET_LOGIN)
        (row,) = self.connection.execute(
            "INSERT INTO tensile.workers (login, host, pid, device_name, version, state)"
            " VALUES (current_user, 'here', 1, 'puppet', '0', 'ready') RETURNING id"
        )
        self.worker = row["id"]

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        self._thread.join()
        self.connection.close()
        if self._failure is not None:
            raise self._failure

    def _run(self):
        try:
            while not self._stop.is_set():
                self.play()
        except Exception as error:  # noqa: BLE001  # handed to the test's own thread
            self._failure = error


class Puppet(PlayedWorker):
    """Claims every job and does to its row what the test's script says.

    script: function of the puppet and the claimed job's row.
    """

    def __init__(self, site, script):
        super().__init__(site)
        self._script = script

    def execute(self, statement, *arguments):
        """Run a statement as the worker's login."""
        cursor = self.connection.execute(statement, arguments)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement, *arguments):
        """Run a statement and return its only value."""
        (row,) = self.execute(statement, *arguments)
        (value,) = row.values()
        return value

    def update(self, job, **columns):
        """Write columns of the job's row."""
        columns = {name: Jsonb(value) if name == "result" else value for name, value in columns.items()}
        assignments = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in columns)
        statement = sql.SQL("UPDATE tensile.jobs SET {}, updated_at = clock_timestamp() WHERE id = %s")
        self.connection.execute(statement.format(assignments), [*columns.values(), job["id"]])

    def succeed(self, job, **columns):
        """End the job well."""
        self.update(job, state="succeeded", phase="done", **columns)

    def fail(self, job, sqlstate, message, hint=None):
        """End the job with an error."""
        self.update(
            job,
            state="failed",
            phase="done",
            error_sqlstate=sqlstate,
            error_message=message,
            error_hint=hint,
        )

    def wait_for_cancel(self, job):
        """Wait until the job's end is asked for, then end it."""
        requested = "SELECT cancel_requested FROM tensile.jobs WHERE id = %s"
        wait_until(lambda: self.value(requested, job["id"]), lambda: "nobody asked for the job's end")
        self.update(job, state="cancelled", phase="done", error_sqlstate="57014")

    def play(self):
        self.execute("UPDATE tensile.workers SET heartbeat_at = now() WHERE id = %s", self.worker)
        jobs = self.execute(
            "UPDATE tensile.jobs SET state = 'running', phase = 'reading', worker_id = %s, attempt = 1,"
            " heartbeat_at = now() WHERE id = (SELECT id FROM tensile.jobs WHERE state = 'queued'"
            " ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING *",
            self.worker,
        )
        for job in jobs:
            self._script(self, job)
        time.sleep(0.01)


@pytest.fixture(scope="session")
def site_template(cluster):
    """Name of a database with tensile_db, its users' roles, and tables to learn from."""
    name = f"site_template_{os.getpid()}"
    dsn = cluster.dsn(dbname=name)
    with psycopg.connect(cluster.dsn(dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    install(dsn, architectures=ARCHITECTURES)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for role in ("alice", "bob", "carol", "mallory", PUPPET_LOGIN):
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        connection.execute(f"GRANT tensile_worker TO {PUPPET_LOGIN}")
        for role in ("alice", "bob"):
            connection.execute("SELECT tensile_grant_usage(%s)", [role])
        connection.execute("SELECT tensile_grant_usage('carol', admin => true)")
        connection.execute(
            "CREATE TABLE images_table (id integer PRIMARY KEY, image bytea, label text);"
            "INSERT INTO images_table SELECT i, '\\x00', 'odd' FROM generate_series(1, 9) i;"
            "CREATE TABLE points (id integer, a real, b double precision, note text, y numeric);"
            "INSERT INTO points VALUES (1, 1, 1, 'n', 1);"
            "GRANT SELECT ON images_table, points TO alice, bob, carol"
        )
    return name


@pytest.fixture
def site(cluster, site_template):
    """A database of this test's own, as its users have it."""
    name = f"site_{os.getpid()}_{next(_numbers)}"
    with copied_database(cluster, name, site_template) as dsn, closing(Site(admin=dsn)) as made:
        yield made
