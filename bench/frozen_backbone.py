"""A frozen backbone whose features are made once, beside the whole step and all layers, on the `cpu` device.

    python -m bench.frozen_backbone [--architecture resnet18] [--image-size 64] [--epochs 10] [--rounds 3]

Each training starts from the same model, over 256 pictures of 32 x 32 pixels, enlarged.  The second way runs
the backbone in every epoch: it asks for an augmentation that changes nothing.  Times are those that the jobs
tell, from their claim to their end, reading and capturing with them.
"""

import argparse
import json
from dataclasses import dataclass
from statistics import median
from typing import Any

import psycopg

from bench.results import provenance, table, write
from bench.served import served

_FROZEN = {"freeze_backbone": True}
#: Options by way; the first one is what the others are compared with.
_WAYS: dict[str, dict[str, Any]] = {
    "all layers": {},
    "frozen, the whole step": _FROZEN | {"augmentation": {"horizontal_flip": False}},
    "frozen, features made once": _FROZEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one training."""

    seconds: float
    peak_nbytes: int
    #: By the last plan.
    last_peak_nbytes: int
    loss: float


def main() -> None:
    """Train in all ways, in turns, write the results, and print them as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--architecture", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with (
        served(memory_nbytes=2**32) as cluster,
        psycopg.connect(cluster.dsn(user="bench"), autocommit=True) as connection,
    ):
        client = Client(connection, options.architecture, options.image_size)
        client.train("first", {}, epochs=1)
        rounds = [
            {
                way: client.train("again", given | {"start_from": "first"}, epochs=options.epochs)
                for way, given in _WAYS.items()
            }
            for _ in range(options.rounds)
        ]
    rows = summarise(rounds)
    path = write("frozen_backbone", provenance("bench.frozen_backbone") | vars(options) | {"rows": rows})
    head = list(rows[0])
    print(table(head, [[row[name] for name in head] for row in rows]))
    print(f"written to {path}")


class Client:
    """Who asks for the trainings."""

    def __init__(self, connection: psycopg.Connection[Any], architecture: str, image_size: int) -> None:
        self._connection = connection
        self._architecture = architecture
        self._image_size = image_size

    def train(self, model: str, options: dict[str, Any], *, epochs: int) -> Outcome:
        """Train, and return what came of it."""
        query = """
            SELECT job_id, loss FROM tensile_train(%s, 'pictures', target => 'label', features => '{image}',
                model => %s, epochs => %s, batch_size => 16, optimizer => 'adam', validation => 0.25,
                options => %s)
        """
        given = json.dumps({"image_size": self._image_size} | options)
        arguments = [self._architecture, model, epochs, given]
        job, loss = self._connection.execute(query, arguments).fetchone() or (0, 0.0)
        # The statement that waited for the job sees nothing of its end but what the function returns.
        query = """
            SELECT extract(epoch FROM j.finished_at - j.started_at)::float8, j.measured_peak_nbytes,
                (SELECT max(peak_nbytes) FROM tensile.memory_peaks WHERE job_id = j.id
                 GROUP BY plan_version ORDER BY plan_version DESC LIMIT 1)
            FROM tensile.jobs j WHERE j.id = %s
        """
        row = self._connection.execute(query, [job]).fetchone()
        assert row is not None, "a training that has ended has a row"
        return Outcome(seconds=row[0], peak_nbytes=row[1], last_peak_nbytes=row[2], loss=loss)


def summarise(rounds: list[dict[str, Outcome]]) -> list[dict[str, Any]]:
    """Return a row for each way: its time over that of the first way in the same round, medians."""
    first = next(iter(rounds[0]))
    return [
        {
            "way": way,
            "seconds": round(median(found[way].seconds for found in rounds), 2),
            "of the first": round(median(found[way].seconds / found[first].seconds for found in rounds), 3),
            "peak MB": round(max(found[way].peak_nbytes for found in rounds) / 1e6, 1),
            "in epochs": round(max(found[way].last_peak_nbytes for found in rounds) / 1e6, 1),
            "losses": sorted({found[way].loss for found in rounds}),
        }
        for way in rounds[0]
    ]


if __name__ == "__main__":
    main()
