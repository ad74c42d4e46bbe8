"""A private server with a table of pictures and a worker on the `cpu` device."""

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tensile_db.capture.architectures import known_names
from tensile_db.catalog.install import install
from tensile_db.local import DATABASE, LocalCluster
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.service import Worker

ROWS = """
    CREATE TABLE pictures AS SELECT i AS id, i % 10 AS label,
        (SELECT array_agg(((i * p * 37) % 256)::smallint) FROM generate_series(1, 3072) p) AS image
    FROM generate_series(1, 256) i
"""


@contextmanager
def served(*, memory_nbytes: int) -> Iterator[LocalCluster]:
    """Start a server and a worker; role bench owns the table pictures, 256 rows, and may train."""
    folder = Path(tempfile.mkdtemp(prefix="tensile-bench-"))
    folder.chmod(0o755)
    cluster = LocalCluster(folder, durable=False)
    cluster.start()
    try:
        install(cluster.dsn(), architectures=known_names())
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute(ROWS)
            connection.execute("CREATE ROLE bench LOGIN; SELECT tensile_grant_usage('bench')")
            connection.execute("ALTER TABLE pictures OWNER TO bench")
        with _worker(cluster, folder, memory_nbytes):
            yield cluster
    finally:
        cluster.remove()


@contextmanager
def _worker(cluster: LocalCluster, folder: Path, memory_nbytes: int) -> Iterator[None]:
    worker = Worker(
        WorkerConfig(dsn=_worker_dsn(cluster), memory_nbytes=memory_nbytes, cache_dir=folder / "cache")
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            while not connection.execute("SELECT 1 FROM tensile.workers WHERE state = 'ready'").fetchone():
                time.sleep(0.1)
        yield
    finally:
        worker.stop()
        thread.join()


def _worker_dsn(cluster: LocalCluster) -> str:
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute("CREATE ROLE bench_worker LOGIN; GRANT tensile_worker TO bench_worker")
    return cluster.dsn(user="bench_worker", dbname=DATABASE)
