"""What a crash, a shutdown and a lost connection leave: jobs that go on bit for bit."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tensile_db.errors import WorkerUnavailable
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.service import Worker
from tensile_db.worker.supervisor import Supervisor
from tests.fixtures.uninterrupted import trained_once
from tests.jobs.ended_jobs import METRICS_AN_EPOCH
from tests.jobs.inserted_rows import ELSEWHERE
from tests.patience import PATIENCE_S, wait_until
from tests.played.forked_process import start_forked
from tests.played.pooler import pooler

# Its tests share a fixture.
pytestmark = pytest.mark.xdist_group("worker_crash")

#: Dropout, so that the generator's state counts; Adam, so that the optimizer's does.
TRAINING = {
    "epochs": 60,
    "optimizer": "adam",
    "learning_rate": 0.01,
    "options": {"hidden_units": [32, 16], "dropout": 0.3, "checkpoint_iterations": 40},
}
ITERATIONS = 60 * 9


@pytest.fixture
def supervised(start_forked):
    """A worker process under its supervisor."""
    return start_forked(memory_nbytes=64 * 2**20)


@pytest.fixture
def uninterrupted(database, start_worker, reference):
    """The weights of the same training without any interruption; trained once."""
    return trained_once(reference, database, start_worker, TRAINING)


@pytest.mark.parametrize(("told", "found"), [(None, b"1000"), ("77", b"77")])
def test_kernels_threads_wait_for_each_other_briefly_unless_it_is_said_for_how_long(
    start_supervised, monkeypatch, told, found
):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if told is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", told)
    supervised = start_supervised(memory_nbytes=64 * 2**20)
    wait_until(lambda: supervised.worker_pid is not None)
    environment = Path(f"/proc/{supervised.worker_pid}/environ")
    # Empty until the kernel has laid out the new program's memory, a moment after its start is told.
    wait_until(environment.read_bytes)
    assert b"GOMP_SPINCOUNT=" + found in environment.read_bytes().split(b"\0")


def has_checkpoint(row):
    return (row["iteration"] or 0) > 60


def checkpoint_of(database, job):
    return database.execute("SELECT * FROM tensile.checkpoints WHERE job_id = %s AND complete", job)


def metrics_of(database, job):
    return database.execute(
        "SELECT epoch, split, metric, value FROM tensile.training_metrics WHERE job_id = %s"
        " ORDER BY epoch, split, metric",
        job,
    )


def test_after_kill_9_a_job_goes_on_as_if_nothing_had_happened(database, uninterrupted, supervised):
    job = database.submit("points", **TRAINING)
    row = database.wait_until(job, has_checkpoint)
    assert row["iteration"] < ITERATIONS
    os.kill(supervised.worker_pid, signal.SIGKILL)
    row = database.wait(job)
    events = database.execute(
        "SELECT at, kind, detail FROM tensile.job_events WHERE job_id = %s ORDER BY id", job
    )
    assert (row["state"], row["attempt"]) == ("succeeded", 2), events
    assert database.weights(job) == uninterrupted
    # Neither lost nor twice.
    assert len(metrics_of(database, job)) == METRICS_AN_EPOCH * TRAINING["epochs"]
    (plan,) = database.execute(
        "SELECT reason FROM tensile.plans WHERE job_id = %s AND reason = 'resume'", job
    )
    assert plan
    (event,) = database.execute(
        "SELECT detail FROM tensile.job_events WHERE job_id = %s AND kind = 'taken_over'", job
    )
    assert event["detail"]["attempt"] == 2


@pytest.mark.thorough
def test_one_that_cannot_start_in_the_place_of_one_that_was_killed_is_tried_until_it_can(
    database, start_forked, tmp_path, caplog
):
    folder, aside = tmp_path / "cache", tmp_path / "aside"
    supervised = start_forked(cache_dir=folder)
    job = database.submit("points", **TRAINING)
    database.wait_until(job, has_checkpoint)
    # Nothing can be made in what is no folder.
    folder.rename(aside)
    folder.touch()
    os.kill(supervised.worker_pid, signal.SIGKILL)
    wait_until(lambda: caplog.text.count("cannot start, which an earlier one could") >= 2)
    folder.unlink()
    aside.rename(folder)
    assert database.wait(job)["state"] == "succeeded"


def test_a_worker_that_is_told_to_stop_leaves_checkpoints_and_queued_jobs(
    database, uninterrupted, start_worker
):
    first = start_worker()
    job = database.submit("points", **TRAINING)
    database.wait_until(job, has_checkpoint)
    first.stop()
    assert first.has_been_up
    row = database.wait_until(job, lambda row: row["state"] == "queued")
    (checkpoint,) = checkpoint_of(database, job)
    assert checkpoint["iteration"] == row["iteration"]
    start_worker()
    assert database.wait(job)["state"] == "succeeded"
    assert database.weights(job) == uninterrupted
    assert checkpoint_of(database, job) == []


def test_a_job_outlives_its_connections(database, uninterrupted, start_worker):
    start_worker()
    job = database.submit("points", **TRAINING)
    database.wait_until(job, has_checkpoint)
    for _ in range(3):
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = 'worker_login' AND datname = current_database()"
        )
        time.sleep(0.3)
    row = database.wait(job)
    assert (row["state"], row["attempt"]) == ("succeeded", 1)
    assert database.weights(job) == uninterrupted


@pytest.fixture
def refused(capfd, tmp_path):
    """Runs a worker process that must not start, nor be started again; returns what it said of it."""

    def run(**settings):
        usual = {"memory_nbytes": 64 * 2**20, "cache_dir": tmp_path, "calibrate": False}
        supervisor = Supervisor(WorkerConfig(**(usual | settings)), start_process=start_forked)
        with pytest.raises(WorkerUnavailable, match="the worker cannot start"):
            supervisor.run()
        (line,) = capfd.readouterr().err.splitlines()
        assert " ERROR " in line
        return line

    return run


def test_a_worker_with_a_mistake_in_its_options_says_so_and_is_not_started_again(refused, cluster, tmp_path):
    line = refused(dsn="garbage")
    assert '--dsn is no connection string: missing "=" after "garbage"' in line
    assert "  Hint: Write 'host=db" in line
    dsn = cluster.dsn()
    line = refused(dsn=dsn, cache_dir="/proc/xx")
    assert "the cache folder /proc/xx cannot be made" in line
    assert "  Hint: Name one that you may write to: --cache FOLDER." in line
    line = refused(dsn=dsn, threads=100_000)
    assert "100000 threads are too many" in line
    assert "  Hint: More than" in line


def test_a_login_that_is_no_worker_is_told_what_it_lacks(refused, cluster, database):
    line = refused(dsn=make_conninfo(database.admin, user="anna"))
    assert "the role of --dsn may not be a worker: permission denied for table" in line
    assert "  Hint: Connect as a member of tensile_worker" in line


def test_a_login_that_is_a_superuser_is_refused(refused, database):
    line = refused(dsn=database.admin)
    assert 'the role of --dsn, "postgres", is a superuser, which no worker may be' in line
    assert "  Hint: Connect as another: CREATE ROLE" in line
    assert database.execute("SELECT count(*) AS n FROM tensile.workers") == [{"n": 0}]


def test_a_catalog_that_is_older_than_the_worker_is_refused(refused, database):
    (row,) = database.execute("SELECT version_num FROM tensile.migrations")
    database.execute("UPDATE tensile.migrations SET version_num = '0025'")
    line = refused(dsn=database.worker)
    assert "the database's tensile_db is older than this worker: it has migration 0025, and " in line
    assert f"and {row['version_num']} is needed  Hint: Upgrade it first: tensile-db install DSN." in line


def test_one_that_is_newer_is_not(database, start_forked):
    database.execute("UPDATE tensile.migrations SET version_num = '9999'")
    start_forked(memory_nbytes=64 * 2**20)
    database.wait_for_worker()


def test_one_that_was_restored_is_refused_until_its_owners_are_found(refused, database, start_forked):
    database.execute(ELSEWHERE)
    line = refused(dsn=database.worker)
    assert "the catalog of tensile_db comes from another database, where roles and tables may have" in line
    assert "  Hint: As a superuser: SELECT * FROM tensile_after_restore(); after pg_upgrade: " in line
    database.execute("SELECT * FROM tensile_after_restore()")
    start_forked(memory_nbytes=64 * 2**20)
    database.wait_for_worker()


def test_a_role_or_a_database_that_is_not_there_is_not_waited_for(refused, cluster):
    line = refused(dsn=cluster.dsn(user="absent", dbname="postgres"))
    assert "the server of --dsn refuses the worker: " in line
    assert 'role "absent" does not exist  Hint: Name a role that may log in' in line
    line = refused(dsn=cluster.dsn(dbname="absent"))
    assert 'database "absent" does not exist  Hint: Name another database' in line


@pytest.mark.parametrize(
    ("drops", "said"),
    [
        pytest.param(
            False,
            "unsupported startup parameter: options",
            marks=pytest.mark.skipif(psycopg.pq.version() < 180000, reason="libpq is older than 18"),
        ),
        (True, "the connection of --dsn has not the settings that it was made with"),
    ],
)
def test_a_pooler_is_refused(refused, database, cluster, tmp_path, drops, said):
    where = conninfo_to_dict(database.worker)
    server_socket = Path(where["host"]) / f".s.PGSQL.{where['port']}"
    with tempfile.TemporaryDirectory() as name, pooler(server_socket, Path(name), drops=drops) as folder:
        line = refused(dsn=make_conninfo(database.worker, host=str(folder)))
    assert said in line
    assert "  Hint: Name the server itself in --dsn, not a pooler as PgBouncer" in line
    assert database.execute("SELECT count(*) AS n FROM tensile.workers") == [{"n": 0}]


def test_a_server_that_is_away_is_waited_for(caplog, tmp_path):
    worker = Worker(WorkerConfig(dsn=f"host={tmp_path}", cache_dir=tmp_path, calibrate=False))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: caplog.text.count("the database is away or busy, next try in") >= 2)
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not worker.has_been_up


def test_a_worker_that_cannot_start_says_so_and_is_not_started_again(cluster, tmp_path):
    supervisor = Supervisor(
        WorkerConfig(dsn=cluster.dsn(dbname="postgres"), cache_dir=tmp_path, calibrate=False)
    )
    with pytest.raises(Exception, match="the worker cannot start") as refusal:
        supervisor.run()
    assert refusal.value.sqlstate == "55000"
