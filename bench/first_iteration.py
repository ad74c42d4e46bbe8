"""From a client's submit to the first iteration, on an idle worker, on a private server.

    python -m bench.first_iteration [--rounds 5]

Each round submits a job by SQL; its way is read off tensile.job_events and tensile.jobs.  Reading, capture,
planning and the wait for the worker's notice are all in it; starting the worker is not.
"""

import argparse
import time
from statistics import median
from typing import Any

import psycopg

from bench.results import provenance, table, write
from bench.served import served
from tensile_db.local import LocalCluster

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
    with served(memory_nbytes=2**31) as cluster:
        rows = _run(cluster, arguments.rounds)
    path = write("first_iteration", provenance("bench.first_iteration") | {"rows": rows})
    print(table(["network", "first submit, s", "later submits, median s"], [list(r.values()) for r in rows]))
    print(f"written to {path}")


def _run(cluster: LocalCluster, rounds: int) -> list[dict[str, Any]]:
    times = {
        name: [_seconds(cluster, name, options) for _ in range(rounds + 1)] for name, options in NETWORKS
    }
    return [
        {"network": name, "first_s": round(seconds[0], 2), "later_s": round(median(seconds[1:]), 2)}
        for name, seconds in times.items()
    ]


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
