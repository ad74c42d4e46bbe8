"""A database with tensile_db, a user and a worker's login, and the requests that users would make.

Databases are copies of one template, for an install takes a second.  Workers are imported by the fixtures
that start them: the process that only hands out the tests has no use for PyTorch.
"""

import itertools
import os
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tensile_db.catalog import leases, workers
from tensile_db.catalog.engine import make_engine
from tensile_db.catalog.install import install
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.config import WorkerConfig
from tests.patience import PATIENCE_S, wait_until
from tests.throw_away import KeptConnection, copied_database

_numbers = itertools.count(1)

_JOB = "SELECT * FROM tensile.jobs WHERE id = %s"

ARCHITECTURES = (("mlp", "mlp", "mlp"),)

#: Of a worker that only claims.
DEVICE = DeviceSpec(
    name="cpu",
    memory_nbytes=1 << 20,
    d2h_bytes_per_s=1,
    h2d_bytes_per_s=1,
    duplex=True,
    flops_per_s=1,
    memory_bytes_per_s=1,
    op_overhead_ns=1,
)


@dataclass(frozen=True, kw_only=True)
class Database:
    """Connection strings of one database, by who connects."""

    admin: str
    worker: str
    _kept: KeptConnection = field(init=False, repr=False)

    def __post_init__(self):
        object.__setattr__(self, "_kept", KeptConnection(self.admin))

    def execute(self, statement, *arguments):
        """Run a statement in the kept session of the superuser; return its rows as dictionaries."""
        return self._kept.execute(statement, arguments)

    def close(self):
        """Close what is kept."""
        self._kept.close()

    def job(self, job_id):
        """Return a job's row."""
        return self.execute(_JOB, job_id)[0]

    def wait_until(self, job_id, done, timeout_s=PATIENCE_S):
        """Wait until a job's row is as `done` wants it; return the row."""

        def found():
            row = self.job(job_id)
            return row if done(row) else None

        def told():
            return f"{self.job(job_id)}\n{self.execute('SELECT * FROM tensile.job_events')}"

        return wait_until(found, told, timeout_s=timeout_s)

    def wait(self, job_id, timeout_s=PATIENCE_S):
        """Wait for a job's end; return its row."""
        return self.wait_until(job_id, lambda row: row["finished_at"] is not None, timeout_s)

    def wait_for_worker(self):
        """Wait until a worker is ready."""
        wait_until(lambda: self.execute("SELECT id FROM tensile.workers WHERE state = 'ready'"))

    def let_go(self, worker):
        """Stop the only worker and wait until it is gone: until then it may claim what is submitted."""
        worker.stop()
        wait_until(lambda: not self.execute("SELECT id FROM tensile.workers WHERE state <> 'gone'"))

    def ask(self, job_id, **wishes):
        """Set columns of a job by which its owner asks something of its worker."""
        wanted = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in wishes)
        statement = sql.SQL("UPDATE tensile.jobs SET {} WHERE id = %s").format(wanted)
        self.execute(statement, *wishes.values(), job_id)

    def weights(self, job_id):
        """Return the weights of the model that a job made, bytes by name and part."""
        rows = self.execute(
            "SELECT name, part, data FROM tensile.model_weights"
            " WHERE model_id = (SELECT id FROM tensile.models WHERE job_id = %s)",
            job_id,
        )
        return {(row["name"], row["part"]): bytes(row["data"]) for row in rows}

    def connect(self, *, autocommit=True, **options):
        """Connect as the user anna; each statement commits by itself unless said otherwise."""
        anna = psycopg.conninfo.make_conninfo(self.admin, user="anna")
        return psycopg.connect(anna, autocommit=autocommit, **options)

    def submit(self, source, **request):
        """Insert a job of the user `anna`, as her SQL functions would; return its id."""
        row = {
            "kind": "train",
            "architecture": "mlp",
            "target": "label",
            "features": ["a", "b"],
            "model": "m",
            "epochs": 2,
            "batch_size": 8,
            "optimizer": "momentum",
            "learning_rate": 0.05,
            "validation": 0.25,
            "seed": 1,
            "policy": "auto",
            "options": {},
        } | request
        row["options"] = Jsonb(row["options"])
        names = list(row)
        statement = sql.SQL(
            "INSERT INTO tensile.jobs (submitted_by, owner, source_oid, source_name, {})"
            " SELECT oid, rolname, %s::regclass, %s, {} FROM pg_roles WHERE rolname = 'anna' RETURNING id"
        ).format(
            sql.SQL(", ").join(map(sql.Identifier, names)), sql.SQL(", ").join(sql.Placeholder() * len(names))
        )
        with psycopg.connect(self.admin) as connection:
            return connection.execute(statement, [source, source, *row.values()]).fetchone()[0]


@pytest.fixture(scope="session")
def installed_template(cluster):
    """Name of a database with tensile_db, and tables `points` and `pictures` of user anna, to be copied."""
    return make_template(cluster, f"template_{os.getpid()}")


def make_template(cluster, name, options=""):
    """Make such a database; options: of CREATE DATABASE.  Return its name."""
    with psycopg.connect(cluster.dsn(dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} " + options).format(sql.Identifier(name)))
        install(cluster.dsn(dbname=name), architectures=ARCHITECTURES)
        for role, group in (("anna", "tensile_user"), ("worker_login", "tensile_worker")):
            connection.execute(
                f"DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
            )
            connection.execute(f"GRANT {group} TO {role}")
        connection.execute("GRANT anna TO tensile_worker")
    with psycopg.connect(cluster.dsn(dbname=name), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE points AS SELECT i AS id, (i % 7)::real AS a, (i % 5)::real AS b,"
            " CASE WHEN (i % 7) > (i % 5) THEN 'up' ELSE 'down' END AS label"
            " FROM generate_series(1, 100) i"
        )
        # 8 x 8 grey pixels, brighter for the second class.
        connection.execute(
            "CREATE TABLE pictures AS SELECT i AS id, i % 2 AS label,"
            " (SELECT array_agg(((i * p * 37 + p * p) % 128 + 100 * (i % 2))::smallint ORDER BY p)"
            "  FROM generate_series(1, 64) p) AS image FROM generate_series(1, 60) i"
        )
        for table in ("points", "pictures"):
            connection.execute(f"ALTER TABLE {table} OWNER TO anna")
            connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
    return name


@pytest.fixture
def database(cluster, installed_template):
    """A database of this test's own with tensile_db in it, and what the template has."""
    name = f"worker_{os.getpid()}_{next(_numbers)}"
    login = cluster.dsn(user="worker_login", dbname=name)
    with (
        copied_database(cluster, name, installed_template) as dsn,
        closing(Database(admin=dsn, worker=login)) as made,
    ):
        yield made


@contextmanager
def _starting(make, database, tmp_path):
    """Give a function that starts what `make` makes of a configuration, in a thread; stop all at the end."""
    started = []

    def start(*, memory_nbytes=256 * 2**20, **settings):
        usual = {"threads": 1, "cache_dir": tmp_path, "poll_s": 0.2, "calibrate": False}
        config = WorkerConfig(dsn=database.worker, memory_nbytes=memory_nbytes, **(usual | settings))
        service = make(config)
        thread = threading.Thread(target=service.run)
        thread.start()
        started.append((service, thread))
        return service

    yield start
    for service, _ in started:
        service.stop()
    for _, thread in started:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.fixture
def start_worker(database, tmp_path):
    """Start workers in threads of the test's process; all are stopped at its end."""
    with starting_workers(database, tmp_path) as start:
        yield start


@contextmanager
def starting_workers(database, folder):
    """Give a function that starts a worker in a thread; all stop at the end.  folder: for their caches."""
    from tensile_db.capture.trace import prepare_tracing
    from tensile_db.worker.service import Worker

    # As a worker's own process does in its main thread.
    prepare_tracing()
    with _starting(Worker, database, folder) as start:
        yield start


@pytest.fixture
def start_supervised(database, tmp_path):
    """Start worker processes under supervisors; all are stopped at the test's end."""
    from tensile_db.worker.supervisor import Supervisor

    with _starting(Supervisor, database, tmp_path) as start:
        yield start


@pytest.fixture
def start_forked(database, tmp_path):
    """Do the same where how a process comes about is not what is tested: many start much sooner."""
    from tensile_db.worker.supervisor import Supervisor
    from tests import forked_process

    make = partial(Supervisor, start_process=forked_process.start_forked)
    with _starting(make, database, tmp_path) as start:
        yield start


@pytest.fixture
def fence(database, engine):
    """What the writes of a claimed job's attempt are bound to."""
    database.submit("points")
    with engine.begin() as conn:
        worker = workers.register(conn, host="here", pid=1, version="0", device=DEVICE)
        (job,), _ = leases.claim(conn, worker=worker, device="cpu", limit=1, lease_s=30.0)
    return job.fence


@pytest.fixture
def engine(database):
    """Connections of the worker's login."""
    engine = make_engine(database.worker, application_name="test", pool_size=4)
    yield engine
    engine.dispose()
