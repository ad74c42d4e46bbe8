"""A private server with a table of pictures, and workers on the `cpu` device, processes of their own."""

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tensile_db.capture.networks.architectures import known_names
from tensile_db.catalog.install import install
from tensile_db.local import DATABASE, LocalCluster
from tensile_db.local_account import SERVER_USER
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.supervisor import Supervisor

ROWS = """
    CREATE TABLE pictures AS SELECT i AS id, i % 10 AS label,
        (SELECT array_agg(((i * p * 37) % 256)::smallint) FROM generate_series(1, 3072) p) AS image
    FROM generate_series(1, 256) i;
    CREATE TABLE few_pictures AS SELECT * FROM pictures WHERE id <= 40
"""


@contextmanager
def served(*, memory_nbytes: int) -> Iterator[LocalCluster]:
    """Start a server and a worker.

    Role bench owns the tables pictures, 256 rows, and few_pictures, 40 of them, and may train.
    """
    with server() as cluster, worker(cluster, memory_nbytes=memory_nbytes):
        yield cluster


@contextmanager
def server() -> Iterator[LocalCluster]:
    """Start a server as above, without a worker."""
    folder = Path(tempfile.mkdtemp(prefix="tensile-bench-"))
    folder.chmod(0o755)
    try:
        with server_in(folder) as cluster:
            with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
                connection.execute(ROWS)
                connection.execute(
                    "ALTER TABLE pictures OWNER TO bench; ALTER TABLE few_pictures OWNER TO bench"
                )
            yield cluster
    finally:
        shutil.rmtree(folder)


@contextmanager
def server_in(folder: Path, *, server_user: str = SERVER_USER) -> Iterator[LocalCluster]:
    """Start a server with its data in a folder, with role bench, who may train, and role bench_worker.

    server_user: who runs it, where root asks.
    """
    cluster = LocalCluster(folder, durable=False, server_user=server_user)
    cluster.start()
    try:
        install(cluster.dsn(), architectures=known_names())
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute("CREATE ROLE bench LOGIN; SELECT tensile_grant_usage('bench')")
            connection.execute("CREATE ROLE bench_worker LOGIN; GRANT tensile_worker TO bench_worker")
        yield cluster
    finally:
        cluster.remove()


@contextmanager
def worker(cluster: LocalCluster, *, memory_nbytes: int) -> Iterator[None]:
    """Run a worker with so much device memory."""
    dsn = cluster.dsn(user="bench_worker", dbname=DATABASE)
    with tempfile.TemporaryDirectory(prefix="tensile-bench-cache-") as cache:
        supervisor = Supervisor(WorkerConfig(dsn=dsn, memory_nbytes=memory_nbytes, cache_dir=Path(cache)))
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        try:
            with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
                ready = "SELECT 1 FROM tensile.workers WHERE state = 'ready'"
                while not connection.execute(ready).fetchone():
                    time.sleep(0.1)
            yield
        finally:
            supervisor.stop()
            thread.join()
