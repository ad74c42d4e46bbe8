"""How long a row's prediction takes: one model alone, many models, in less memory, beside a training.

    python -m bench.serving [--models 42] [--rows 300] [--shares 1 0.5 0.25] [--clients 4] [--seed 7]

Salus' test for real: 42 models, three of each of 14 networks (bench/serving_models.py), on one worker with
the `cpu` device.  Ways to ask, each without a training and beside one, in each part of the memory that the
models' weights take together:

    first       each model's first row on a new worker
    alone       one session asks one model for row after row, then the next model
    in turn     one session asks for a row of a model at random, then for the next
    at once     some sessions do so

Each row's latency is told as a multiple of its own model's median alone, with all the memory and without a
training.  All predictions are compared with those of eager PyTorch.
"""

import argparse
import os
import random
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from bench.results import provenance, table, write
from bench.served import server, worker
from bench.serving_client import Asked, Seen, Sessions, Watch, until
from bench.serving_models import Model, read, train
from tensile_db.catalog.engine import make_engine
from tensile_db.local import LocalCluster

#: Beyond the models' weights, where there is enough: for batches, a lane of their own, and the training.
_AMPLE_NBYTES = 2**30
#: Rows of each model, one after another.
_ROWS_ALONE = 8
_IDS = range(1, 17)
_TRAIN = """
    SELECT tensile_submit('resnet18', 'pictures', model => 'beside', epochs => 100000, batch_size => 16,
                          features => ARRAY['image'], target => 'label')
"""
_END = "SELECT tensile_cancel(id) FROM tensile.jobs WHERE kind = 'serve' AND finished_at IS NULL"
_PATIENCE_S = 300.0
HEAD = (
    "memory",
    "beside",
    "asked",
    "rows",
    "median, ms",
    "95 %, ms",
    "over alone",
    "95 % over alone",
    "wrong",
    "moves",
    "held, MiB",
    "training, it/s",
)


def main() -> None:
    """Measure, write the times, and print them as a table."""
    parser = argparse.ArgumentParser(description="How long a row's prediction takes.")
    parser.add_argument("--models", type=int, default=42)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.5, 0.25])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    with server() as cluster:
        models = prepare(cluster, arguments.models)
        state_nbytes = sum(model.nbytes for model in models)
        bench = Bench(cluster, models, rows=arguments.rows, clients=arguments.clients, seed=arguments.seed)
        for share in arguments.shares:
            memory_nbytes = int(share * state_nbytes) if share < 1 else state_nbytes + _AMPLE_NBYTES
            with worker(cluster, memory_nbytes=memory_nbytes):
                bench.measure(memory_nbytes)
    header = vars(arguments) | {"networks": [model.network for model in models], "state_nbytes": state_nbytes}
    path = write("serving", provenance("bench.serving") | header | {"rows_of_cases": bench.found})
    print(table(HEAD, [_cells(row) for row in bench.found]))
    print(f"written to {path}")


def prepare(cluster: LocalCluster, count: int) -> list[Model]:
    """Train the models on a worker of their own."""
    sessions = Sessions(cluster.dsn(user="bench"))
    with worker(cluster, memory_nbytes=2**31):
        networks = train(sessions.own, count)
    engine = make_engine(cluster.dsn(), application_name="bench", pool_size=1)
    with engine.connect() as conn:
        return read(conn, networks, _IDS)


class Bench:
    """All cases."""

    def __init__(
        self, cluster: LocalCluster, models: Sequence[Model], *, rows: int, clients: int, seed: int
    ) -> None:
        self.found: list[dict[str, Any]] = []
        self._models = models
        self._rows = rows
        self._clients = clients
        self._random = random.Random(seed)
        self._sessions = Sessions(cluster.dsn(user="bench"))
        self._watch = Watch(cluster.dsn())
        #: Each model's median latency by itself.
        self._alone_ms: dict[str, float] = {}

    def measure(self, memory_nbytes: int) -> None:
        """Measure all ways on the worker that runs."""
        self._case(memory_nbytes, "first", [[(model, 1) for model in self._models]])
        self._say(f"settled in {self._watch.settle():.0f} s")
        self._ways(memory_nbytes)
        ((job,),) = self._sessions.query(_TRAIN)
        self._watch.training = job
        iteration = "SELECT coalesce(iteration, 0) FROM tensile.jobs WHERE id = %s"
        until(lambda: self._sessions.query(iteration, job)[0][0] > 20, patience_s=_PATIENCE_S)
        self._ways(memory_nbytes)
        self._sessions.query("SELECT tensile_cancel(%s)", job)
        ended = "SELECT finished_at IS NOT NULL FROM tensile.jobs WHERE id = %s"
        until(lambda: bool(self._sessions.query(ended, job)[0][0]), patience_s=_PATIENCE_S)
        self._watch.training = None
        # The next worker is to find none of them served.
        self._sessions.query(_END)

    def _ways(self, memory_nbytes: int) -> None:
        alone = [(model, row) for model in self._models for row in _IDS[:_ROWS_ALONE]]
        self._case(memory_nbytes, "alone", [alone])
        self._case(memory_nbytes, "in turn", [self._at_random(self._rows)])
        each = self._rows // self._clients
        self._case(memory_nbytes, "at once", [self._at_random(each) for _ in range(self._clients)])

    def _at_random(self, count: int) -> list[tuple[Model, int]]:
        return [(self._random.choice(self._models), self._random.choice(_IDS)) for _ in range(count)]

    def _case(self, memory_nbytes: int, way: str, parts: list[list[tuple[Model, int]]]) -> None:
        with self._watch.looking() as seen:
            asked = self._sessions.ask_at_once(parts)
        if way == "alone" and not self._alone_ms:
            for model in self._models:
                # The first ones bring it in.
                self._alone_ms[model.name] = median([row.ms for row in asked if row.model == model.name][2:])
        row = {
            "memory_nbytes": memory_nbytes,
            "beside": "nothing" if self._watch.training is None else "a training",
            "asked": way,
        }
        self.found.append(row | self._summary(asked, seen))
        self._say(" | ".join(map(str, _cells(self.found[-1]))))

    def _summary(self, asked: Sequence[Asked], seen: Seen) -> dict[str, Any]:
        times = [row.ms for row in asked]
        over = [row.ms / self._alone_ms[row.model] for row in asked if row.model in self._alone_ms]
        return {
            "rows": len(asked),
            "median_ms": median(times),
            "p95_ms": quantiles(times, n=20)[-1],
            "longest_ms": max(times),
            "over_alone": median(over) if over else None,
            "p95_over_alone": quantiles(over, n=20)[-1] if over else None,
            "wrong": sum(not row.is_right for row in asked),
            "rows_per_second": len(asked) / seen.seconds,
            "batches": seen.batches,
            "moves": seen.moves,
            "moved_nbytes": seen.moved_nbytes,
            "held_median_nbytes": median(seen.held_nbytes) if seen.held_nbytes else None,
            "held_most_nbytes": max(seen.held_nbytes, default=None),
            "peak_nbytes": seen.peak_nbytes,
            "worker_resident_nbytes": seen.resident_nbytes,
            "transactions_per_row": seen.transactions / len(asked),
            # Of everything on the machine, for who reads the times.
            "load_average": os.getloadavg()[0],
            "training_iterations_per_second": seen.iterations / seen.seconds
            if self._watch.training
            else None,
        }

    def _say(self, line: str) -> None:
        print(line, flush=True)


def _cells(row: dict[str, Any]) -> list[object]:
    def number(value: float | None, digits: int = 2) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return [
        f"{row['memory_nbytes'] / 2**20:.0f} MiB",
        row["beside"],
        row["asked"],
        row["rows"],
        number(row["median_ms"], 1),
        number(row["p95_ms"], 1),
        number(row["over_alone"]),
        number(row["p95_over_alone"]),
        row["wrong"],
        row["moves"],
        "" if row["held_most_nbytes"] is None else f"{row['held_most_nbytes'] / 2**20:.0f}",
        number(row["training_iterations_per_second"], 1),
    ]


if __name__ == "__main__":
    main()
