"""From a client's submit to the first iteration, on an idle worker, on a private server.

    python -m bench.first_iteration [--rounds 5]

Each round submits a job by SQL; its way is read off tensile.job_events and tensile.jobs.  Reading, capture,
planning and the wait for the worker's notice are all in it; starting the worker is not.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from bench.results import provenance, table, write
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
NETWORKS = (("mlp", "{}"), ("resnet50", '{"image_size": 32}'), ("densenet121", '{"image_size": 32}'))
SUBMIT = """
    SELECT tensile_submit(%s, 'pictures', model => 'bench', epochs => 1, batch_size => 16,
                          optimizer => 'adam', options => %s::jsonb)
"""


def main() -> None:
    """Submit jobs, write the times, and print them as a table."""
    parser = argparse.ArgumentParser(description="Submit to first iteration.")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tensile-bench-"))
    folder.chmod(0o755)
    cluster = LocalCluster(folder, durable=False)
    cluster.start()
    try:
        rows = _run(cluster, folder, arguments.rounds)
    finally:
        cluster.remove()
    path = write("first_iteration", provenance("bench.first_iteration") | {"rows": rows})
    print(table(["network", "first submit, s", "later submits, median s"], [list(r.values()) for r in rows]))
    print(f"written to {path}")


def _run(cluster: LocalCluster, folder: Path, rounds: int) -> list[dict[str, Any]]:
    install(cluster.dsn(), architectures=known_names())
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(ROWS)
        connection.execute("CREATE ROLE bench LOGIN; SELECT tensile_grant_usage('bench')")
        connection.execute("ALTER TABLE pictures OWNER TO bench")
    worker = Worker(WorkerConfig(dsn=_worker_dsn(cluster), memory_nbytes=2**31, cache_dir=folder / "cache"))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        _wait_for_worker(cluster)
        times = {
            name: [_seconds(cluster, name, options) for _ in range(rounds + 1)] for name, options in NETWORKS
        }
    finally:
        worker.stop()
        thread.join()
    return [
        {"network": name, "first_s": round(seconds[0], 2), "later_s": round(median(seconds[1:]), 2)}
        for name, seconds in times.items()
    ]


def _worker_dsn(cluster: LocalCluster) -> str:
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute("CREATE ROLE bench_worker LOGIN; GRANT tensile_worker TO bench_worker")
    return cluster.dsn(user="bench_worker", dbname=DATABASE)


def _wait_for_worker(cluster: LocalCluster) -> None:
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        while not connection.execute("SELECT 1 FROM tensile.workers WHERE state = 'ready'").fetchone():
            time.sleep(0.1)


def _seconds(cluster: LocalCluster, architecture: str, options: str) -> float:
    """Return the time from the call of tensile_submit to the end of the first iteration."""
    with psycopg.connect(cluster.dsn(user="bench"), autocommit=True) as connection:
        begin_s = time.perf_counter()
        (job,) = connection.execute(SUBMIT, [architecture, options]).fetchone() or (None,)
        query = "SELECT iteration, finished_at FROM tensile.jobs WHERE id = %s"
        while True:
            iteration, finished = connection.execute(query, [job]).fetchone() or (None, None)
            if iteration or finished:
                break
            time.sleep(0.005)
        seconds = time.perf_counter() - begin_s
        # Raises the job's error if it failed; the next round finds the worker idle.
        connection.execute("SELECT * FROM tensile_wait(%s)", [job])
        return seconds


if __name__ == "__main__":
    main()
