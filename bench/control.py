"""How soon a busy worker does what it is asked: take a job, plan anew, pause, go on, cancel.

    python -m bench.control [--rounds 5]

A ResNet-18 on 32 x 32 pixels trains all the while.  Times are from the client's call until the job's row says
so; a pause's includes the writing of its checkpoint, and until its memory is freed is what tensile.job_events
has of it.  Planning is what tensile.plans has of it: of the one that trains and the one that comes, together.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import psycopg

from bench.results import provenance, table, write
from bench.served import served

SUBMIT = """
    SELECT tensile_submit('resnet18', 'pictures', model => 'bench', epochs => %s, batch_size => 16,
                          optimizer => 'adam', options => '{"image_size": 32}')
"""
_LONG = 100_000
_PATIENCE_S = 120.0


def main() -> None:
    """Measure, write the times, and print them as a table."""
    parser = argparse.ArgumentParser(description="How soon a busy worker does what it is asked.")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with (
        served(memory_nbytes=2**31) as cluster,
        psycopg.connect(cluster.dsn(user="bench"), autocommit=True) as connection,
    ):
        rows = Client(connection).rows(arguments.rounds)
    path = write("control", provenance("bench.control") | {"rounds": arguments.rounds, "rows": rows})
    print(table(["what", "median, s", "longest, s"], [list(row.values()) for row in rows]))
    print(f"written to {path}")


class Client:
    """Who asks."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def rows(self, rounds: int) -> list[dict[str, Any]]:
        """Return how long each request took, over so many rounds."""
        busy = self._submit(_LONG)
        self._until(busy, lambda row: (row["iteration"] or 0) > 2)
        iteration_s = 16 / float(
            self._until(busy, lambda row: row["samples_per_second"])["samples_per_second"]
        )
        times: dict[str, list[float]] = {
            "an iteration of the job that runs": [iteration_s],
            "submit to first iteration, beside it": [],
            "pause to its memory freed": [],
            "pause to paused": [],
            "resume to next iteration": [],
            "cancel to ended": [],
        }
        for _ in range(rounds):
            self._round(times)
        planning = self._connection.execute(
            "SELECT planning_ns FROM tensile.plans WHERE job_id <> %s AND reason IN ('cold_start', 'resume')",
            [busy],
        ).fetchall()
        times["planning at an arrival"] = [planning_ns / 1e9 for (planning_ns,) in planning]
        self._connection.execute("SELECT tensile_cancel(%s)", [busy])
        self._until(busy, lambda row: row["finished_at"])
        return [
            {"what": what, "median_s": round(median(taken), 3), "longest_s": round(max(taken), 3)}
            for what, taken in times.items()
            if taken
        ]

    def _round(self, times: dict[str, list[float]]) -> None:
        begin_s = time.perf_counter()
        job = self._submit(_LONG)
        self._until(job, lambda row: row["iteration"])
        times["submit to first iteration, beside it"].append(time.perf_counter() - begin_s)
        (asked_at,) = self._connection.execute("SELECT clock_timestamp()").fetchone() or ()
        times["pause to paused"].append(self._ask("pause", job, lambda row: row["state"] == "paused"))
        freed = "SELECT at FROM tensile.job_events WHERE job_id = %s AND kind = 'memory_freed'"
        (freed_at,) = self._connection.execute(freed, [job]).fetchone() or ()
        times["pause to its memory freed"].append((freed_at - asked_at).total_seconds())
        paused_at = self._row(job)["iteration"]
        times["resume to next iteration"].append(
            self._ask("resume", job, lambda row: row["iteration"] > paused_at)
        )
        times["cancel to ended"].append(self._ask("cancel", job, lambda row: row["finished_at"]))

    def _submit(self, epochs: int) -> int:
        (job,) = self._connection.execute(SUBMIT, [epochs]).fetchone() or (0,)
        return int(job)

    def _ask(self, what: str, job: int, done: Callable[[dict[str, Any]], object]) -> float:
        begin_s = time.perf_counter()
        self._connection.execute(f"SELECT tensile_{what}(%s)", [job])
        self._until(job, done)
        return time.perf_counter() - begin_s

    def _row(self, job: int) -> dict[str, Any]:
        query = "SELECT state, iteration, samples_per_second, finished_at FROM tensile.jobs WHERE id = %s"
        names = ("state", "iteration", "samples_per_second", "finished_at")
        return dict(zip(names, self._connection.execute(query, [job]).fetchone() or (), strict=True))

    def _until(self, job: int, done: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline_s = time.perf_counter() + _PATIENCE_S
        while not done(row := self._row(job)):
            assert time.perf_counter() < deadline_s, f"job {job} is {row}"
            time.sleep(0.005)
        return row


if __name__ == "__main__":
    main()
