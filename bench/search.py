"""A search beside the same trainings asked for one by one, on the `cpu` device.

    python -m bench.search [--trials 8] [--epochs 6] [--rounds 2]

The trainings are of a ResNet-18 on 32 x 32 pixels, at as many learning rates.  In each round they are run by
tensile_train, one call after another, by tensile_search with one, two and four trials at a time, and by
successive halving, which gives up the worse ones early.  Times are from the client's call to its return.
"""

import argparse
import json
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import psycopg

from bench.results import provenance, table, write
from bench.served import served

_TRAINING = {
    "target": "label",
    "features": ["image"],
    "batch_size": 16,
    "optimizer": "adam",
    "validation": 0.25,
    "seed": 1,
    "options": json.dumps({"image_size": 32}),
}
_PARALLEL = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of the same trainings, one way."""

    seconds: float
    #: Of all jobs.
    epochs: int
    #: Validation losses of the trainings that ran to their ends, by learning rate.
    losses: dict[float, float]


def main() -> None:
    """Run all ways, write the results, and print them as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    rates = [round(10 ** (-4 + 3 * n / max(1, options.trials - 1)), 6) for n in range(options.trials)]
    with (
        served(memory_nbytes=2**31) as cluster,
        psycopg.connect(cluster.dsn(user="bench"), autocommit=True) as connection,
    ):
        client = Client(connection, rates, options.epochs)
        # Of first calls, some of the time is the worker's.
        client.train(rates[0])
        rounds = [client.round() for _ in range(options.rounds)]
    rows = summarise(rounds)
    document = provenance("bench.search") | vars(options) | {"learning_rates": rates, "rows": rows}
    path = write("search", document)
    head = list(rows[0])
    print(table(head, [[row[name] for name in head] for row in rows]))
    print(f"written to {path}")


class Client:
    """Who asks for the trainings."""

    def __init__(self, connection: psycopg.Connection[Any], rates: list[float], epochs: int) -> None:
        self._connection = connection
        self._rates = rates
        self._epochs = epochs

    def round(self) -> dict[str, Outcome]:
        """Return what came of each way."""
        ways = {"tensile_train, one by one": self._one_by_one()}
        for parallel in _PARALLEL:
            ways[f"grid, {parallel} at a time"] = self._search("grid", parallel)
        ways[f"halving, {_PARALLEL[-1]} at a time"] = self._search("halving", _PARALLEL[-1])
        return ways

    def train(self, rate: float) -> float:
        """Return the validation loss of one training."""
        arguments = _TRAINING | {"learning_rate": rate, "epochs": self._epochs}
        (job,) = self._call("tensile_train", "job_id", arguments)
        query = "SELECT value FROM tensile.training_metrics WHERE job_id = %s AND split = 'validation'"
        query += " AND metric = 'loss' ORDER BY epoch DESC LIMIT 1"
        (loss,) = self._connection.execute(query, [job]).fetchone() or (float("nan"),)
        return float(loss)

    def _one_by_one(self) -> Outcome:
        begin_s = time.perf_counter()
        losses = {rate: self.train(rate) for rate in self._rates}
        seconds = time.perf_counter() - begin_s
        return Outcome(seconds=seconds, epochs=self._epochs * len(self._rates), losses=losses)

    def _search(self, method: str, parallel: int) -> Outcome:
        arguments = _TRAINING | {
            "space": json.dumps({"learning_rate": {"choices": self._rates}}),
            "method": method,
            "trials": len(self._rates),
            "max_parallel": parallel,
            "epochs": self._epochs,
        }
        begin_s = time.perf_counter()
        (search,) = self._call("tensile_search", "search_id", arguments)
        seconds = time.perf_counter() - begin_s
        query = """
            SELECT (params->>'learning_rate')::float8, value, state, epochs_done FROM tensile.trials
            WHERE search_id = %s
        """
        trials = self._connection.execute(query, [search]).fetchall()
        ended = {rate: value for rate, value, state, _ in trials if state == "succeeded"}
        return Outcome(seconds=seconds, epochs=sum(epoch for *_, epoch in trials), losses=ended)

    def _call(self, function: str, wanted: str, arguments: dict[str, Any]) -> tuple[Any, ...]:
        named = ", ".join(f"{name} => %({name})s" for name in arguments)
        query = f"SELECT {wanted} FROM {function}('resnet18', 'pictures', {named})"
        row = self._connection.execute(query, arguments).fetchone()
        assert row is not None, "a call that raises nothing returns a row"
        return tuple(row)


def summarise(rounds: list[dict[str, Outcome]]) -> list[dict[str, Any]]:
    """Return a row for each way: its time over that of the first way in the same round, medians."""
    first = next(iter(rounds[0]))
    rows = []
    for way in rounds[0]:
        outcomes = [found[way] for found in rounds]
        ratios = [found[way].seconds / found[first].seconds for found in rounds]
        alike = [found[first].losses for found in rounds]
        same = all(
            own.losses[rate] == losses[rate]
            for own, losses in zip(outcomes, alike, strict=True)
            for rate in own.losses
        )
        rows.append(
            {
                "way": way,
                "seconds": round(median(own.seconds for own in outcomes), 2),
                "of the first": round(median(ratios), 3),
                "epochs": int(median(own.epochs for own in outcomes)),
                "best loss": min(min(own.losses.values()) for own in outcomes),
                "same losses": same,
            }
        )
    return rows


if __name__ == "__main__":
    main()
