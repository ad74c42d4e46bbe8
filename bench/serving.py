"""How long a row's prediction takes: one model alone, many models, beside a training.

    python -m bench.serving [--models 6] [--rows 100]

The models are ResNet-18s on 32 x 32 pixels, trained for one epoch each; so is what trains beside, for as long
as it takes.  Times are from before tensile_predict(model, image) to after it, by the server's clock, within
one session's select list.  "In turn": one session asks one model after another; "at once": a session each.
"""

import argparse
import threading
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

import psycopg

from bench.results import provenance, table, write
from bench.served import served

SUBMIT = """
    SELECT tensile_submit('resnet18', 'pictures', model => %s, epochs => %s, batch_size => 16, seed => %s,
                          options => '{"image_size": 32}')
"""
ASK = """
    SELECT 1000 * extract(epoch FROM after - before)::float8, prediction
    FROM (SELECT clock_timestamp() AS before, tensile_predict(%s, image) AS prediction,
                 clock_timestamp() AS after
          FROM pictures ORDER BY id LIMIT %s) t
"""
_LONG = 100_000
_PATIENCE_S = 300.0


def main() -> None:
    """Measure, write the times, and print them as a table."""
    parser = argparse.ArgumentParser(description="How long a row's prediction takes.")
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument("--rows", type=int, default=100)
    arguments = parser.parse_args()
    with served(memory_nbytes=2**31) as cluster:
        rows = Client(cluster.dsn(user="bench"), arguments.models, arguments.rows).rows()
    header = {"models": arguments.models, "rows_asked": arguments.rows}
    path = write("serving", provenance("bench.serving") | header | {"rows": rows})
    print(table(["models", "beside", "median, ms", "95 %, ms", "over one alone"], [_cells(r) for r in rows]))
    print(f"written to {path}")


class Client:
    """Who asks."""

    def __init__(self, dsn: str, models: int, rows: int) -> None:
        self._dsn = dsn
        self._models = [f"model{number}" for number in range(models)]
        self._rows = rows
        self._sessions = threading.local()

    def rows(self) -> list[dict[str, Any]]:
        """Return the times of each way to ask, without a training and beside one."""
        for seed, model in enumerate(self._models):
            self._until(self._submit(model, 1, seed), lambda row: row["state"] == "succeeded")
        # Served before the clock runs, and in all sizes of batches.
        self._at_once(self._models)
        time.sleep(20)
        found = self._ways("nothing", None)
        training = self._submit("beside", _LONG, 0)
        self._until(training, lambda row: (row["iteration"] or 0) > 20)
        found += self._ways("a training", found[0]["median_ms"])
        self._query("SELECT tensile_cancel(%s)", training)
        return found

    def _ways(self, beside: str, alone_ms: float | None) -> list[dict[str, Any]]:
        times = {
            "one": self._ask(self._models[0], self._rows),
            "in turn": [
                time_ms
                for place in range(self._rows)
                for time_ms in self._ask(self._models[place % len(self._models)], 1)
            ],
            "at once": self._at_once(self._models),
        }
        alone_ms = median(times["one"]) if alone_ms is None else alone_ms
        return [
            {
                "models": way,
                "beside": beside,
                "median_ms": median(ms),
                "p95_ms": quantiles(ms, n=20)[-1],
                "over_alone": median(ms) / alone_ms,
            }
            for way, ms in times.items()
        ]

    def _at_once(self, models: Sequence[str]) -> list[float]:
        found: list[float] = []
        threads = [
            threading.Thread(target=lambda model=model: found.extend(self._ask(model, self._rows)))
            for model in models
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def _ask(self, model: str, rows: int) -> list[float]:
        return [row[0] for row in self._query(ASK, model, rows)]

    def _submit(self, model: str, epochs: int, seed: int) -> int:
        ((job,),) = self._query(SUBMIT, model, epochs, seed)
        return int(job)

    def _until(self, job: int, done: Any) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            ((state, iteration),) = self._query(
                "SELECT state, iteration FROM tensile.jobs WHERE id = %s", job
            )
            if done({"state": state, "iteration": iteration}):
                return
            if state in ("failed", "cancelled") or time.monotonic() > deadline:
                raise RuntimeError(f"job {job} is {state}")
            time.sleep(0.05)

    def _query(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        # A thread's session keeps its way to the worker open from row to row.
        if not hasattr(self._sessions, "own"):
            self._sessions.own = psycopg.connect(self._dsn, autocommit=True)
        rows: list[tuple[Any, ...]] = self._sessions.own.execute(query, arguments).fetchall()
        return rows


def _cells(row: dict[str, Any]) -> list[object]:
    return [
        row["models"],
        row["beside"],
        f"{row['median_ms']:.1f}",
        f"{row['p95_ms']:.1f}",
        f"{row['over_alone']:.2f}",
    ]


if __name__ == "__main__":
    main()
