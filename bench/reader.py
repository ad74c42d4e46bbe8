"""From a table to arrays: tensile_db's reader beside plain psycopg rows, on a private server.

    python -m bench.reader --rounds 5

Three ways take turns over each table, in one session each:

    read    what a job does: as its submitter, under one snapshot, into files that are mapped as arrays,
            with a digest (tensile_db/data/snapshot.py)
    rows    cursor(binary=True).fetchall(), then numpy.array of each column: what one writes by hand
    copy    COPY ... (FORMAT binary) of the same columns by psycopg, its messages counted and thrown away: how
            fast the server and the protocol are

MB are those of the values in the arrays, 10^6 bytes.  All runs on one machine, so the server's own work is in
every figure.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psycopg

from bench.results import provenance, table, write
from tensile_db.data.columns import Variable
from tensile_db.data.snapshot import Reading, read
from tensile_db.local import LocalCluster

#: Name, columns to read, rows, and the query that makes the table.
TABLES = (
    (
        "8 numbers and a label",
        "a, b, c, d, e, f, g, h, label",
        1_000_000,
        """SELECT i AS id, random()::real AS a, random()::real AS b, random()::real AS c, random()::real AS d,
                  random() AS e, random() AS f, i AS g, (i % 100)::smallint AS h, i % 10 AS label
           FROM generate_series(1, {rows}) AS i""",
    ),
    (
        "real[784] and a label",
        "pixels, label",
        20_000,
        """SELECT i AS id, p.pixels, i % 10 AS label FROM generate_series(1, {rows}) AS i,
           LATERAL (SELECT array_agg(((i * j) % 256)::real) AS pixels
                    FROM generate_series(1, 784) AS j) AS p""",
    ),
    (
        "smallint[784] and a text",
        "pixels, label",
        20_000,
        """SELECT i AS id, p.pixels, 'class ' || i % 10 AS label FROM generate_series(1, {rows}) AS i,
           LATERAL (SELECT array_agg(((i * j) % 256)::smallint) AS pixels
                    FROM generate_series(1, 784) AS j) AS p""",
    ),
    (
        "images of 3 kB and a label",
        "image, label",
        40_000,
        """SELECT i AS id, r.image, i % 10 AS label FROM generate_series(1, {rows}) AS i,
           LATERAL (SELECT string_agg(int8send(hashint8extended(i * 100000::int8 + j, 0)), '') AS image
                    FROM generate_series(1, 350 + i % 50) AS j) AS r""",
    ),
    (
        "images of 150 kB and a label",
        "image, label",
        1_500,
        """SELECT i AS id, r.image, i % 10 AS label FROM generate_series(1, {rows}) AS i,
           LATERAL (SELECT string_agg(int8send(hashint8extended(i * 100000::int8 + j, 0)), '') AS image
                    FROM generate_series(1, 18500 + i % 500) AS j) AS r""",
    ),
)


def main() -> None:
    """Make the tables, read each in every way in turns, print and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the tables' rows")
    options = parser.parse_args()
    found = []
    with _server() as (dsn, folder):
        for number, (name, columns, rows, query) in enumerate(TABLES):
            count = max(1, int(rows * options.scale))
            relation, submitter = _make_table(dsn, f"source_{number}", query.format(rows=count))
            reading = Reading(
                relation=relation,
                submitter=submitter,
                features=[column.strip() for column in columns.split(",")][:-1],
                target="label",
                wants_target=True,
            )
            found.append(_compare(dsn, folder, reading, f"source_{number}", columns, options.rounds))
            found[-1] = {"table": name, "rows": count} | found[-1]
    _report(found, options)


def _compare(
    dsn: str, folder: Path, reading: Reading, name: str, columns: str, rounds: int
) -> dict[str, Any]:
    ways: dict[str, Callable[[psycopg.Connection[Any], int], int]] = {
        "read": lambda connection, number: _read(connection, reading, folder / f"rows-{number}"),
        "rows": lambda connection, number: _rows(connection, name, columns),
        "copy": lambda connection, number: _copy(connection, name, columns),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    nbytes = 0
    for number in range(rounds + 1):
        for way, run in ways.items():
            with psycopg.connect(dsn, autocommit=True) as connection:
                begin = time.perf_counter()
                size = run(connection, number)
                seconds[way].append(time.perf_counter() - begin)
            nbytes = size if way == "read" else nbytes
    # The first round warms the server's and the system's caches.
    seconds = {way: times[1:] for way, times in seconds.items()}
    ratios = [rows / own for own, rows in zip(seconds["read"], seconds["rows"], strict=True)]
    return {"nbytes": nbytes, "seconds": seconds, "times_as_fast_as_rows": median(ratios)}


def _read(connection: psycopg.Connection[Any], reading: Reading, folder: Path) -> int:
    _, stored = read(connection, reading, folder)
    return sum(
        values.data.nbytes if isinstance(values, Variable) else values.nbytes for values in stored.values[:-1]
    )


def _rows(connection: psycopg.Connection[Any], name: str, columns: str) -> int:
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(f"SELECT {columns} FROM {name}".encode()).fetchall()
    by_column = list(zip(*rows, strict=True))
    # Images stay what they are: a list of bytes.
    return sum(np.array(values).nbytes for values in by_column if not isinstance(values[0], bytes))


def _copy(connection: psycopg.Connection[Any], name: str, columns: str) -> int:
    statement = f"COPY (SELECT {columns} FROM {name}) TO STDOUT (FORMAT binary)".encode()
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        return sum(1 for _ in copy)


def _make_table(dsn: str, name: str, query: str) -> tuple[int, int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} AS {query}".encode())
        connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)".encode())
        connection.execute(f"VACUUM ANALYZE {name}".encode())
        connection.execute(f"GRANT SELECT ON {name} TO submitter".encode())
        row = connection.execute(
            "SELECT %s::text::regclass::oid::int8, 'submitter'::regrole::oid::int8", [name]
        ).fetchone()
    assert row is not None
    return row


@contextmanager
def _server() -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="tensile-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the server's user must reach its own folder within
        cluster = LocalCluster(folder, durable=False)
        cluster.start()
        try:
            with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
                connection.execute("CREATE ROLE submitter")
            yield cluster.dsn(), folder
        finally:
            cluster.remove()


def _report(found: list[dict[str, Any]], options: argparse.Namespace) -> None:
    lines: list[list[object]] = []
    for entry in found:
        took = {way: median(times) for way, times in entry["seconds"].items()}
        lines.append(
            [
                entry["table"],
                f"{entry['rows']:,}",
                f"{entry['rows'] / took['read']:,.0f}",
                f"{entry['nbytes'] / took['read'] / 1e6:,.0f}",
                f"{entry['rows'] / took['rows']:,.0f}",
                f"{entry['times_as_fast_as_rows']:.2f}",
                f"{took['copy'] / took['read']:.2f}",
            ]
        )
    head = ["table", "rows", "read rows/s", "read MB/s", "psycopg rows/s", "read : rows", "read : copy"]
    print(table(head, lines))
    document = {"options": vars(options), "load_average": os.getloadavg(), "tables": found}
    print(write("reader", provenance("bench.reader") | document))


if __name__ == "__main__":
    main()
