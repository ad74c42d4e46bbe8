"""Who asks for rows in `bench.serving`, and what is to be seen of the worker meanwhile.

Times are from before tensile_predict(model, image) to after it, by the server's clock, within one session's
select list.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from bench.serving_models import Model

_ASK = """
    SELECT 1000 * extract(epoch FROM after - before)::float8, prediction
    FROM (SELECT clock_timestamp() AS before, tensile_predict(%s, image) AS prediction,
                 clock_timestamp() AS after
          FROM pictures WHERE id = %s) t
"""
_SERVED = """
    SELECT coalesce(sum((result ->> 'moves')::int), 0)::int,
           coalesce(sum((result ->> 'moved_nbytes')::int8), 0)::int8,
           coalesce(sum((result ->> 'batches')::int), 0)::int
    FROM tensile.jobs WHERE kind = 'serve' AND state = 'running'
"""
_DEVICE = """
    SELECT d.used_nbytes, d.peak_nbytes, d.utilization, w.pid FROM tensile.devices d
    JOIN tensile.workers w ON w.id = d.worker_id WHERE w.state = 'ready'
"""
_LOOK_EVERY_S = 0.25
#: A serving job tells what it has done half a second after its last row.
_TOLD_AFTER_S = 2.0
#: Of the device's time; below it, nothing is captured or planned any more.
_QUIET = 0.1
_QUIET_FOR_S = 4.0
_LONGEST_SETTLING_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One row."""

    model: str
    ms: float
    is_right: bool


@dataclass(slots=True, kw_only=True)
class Seen:
    """What was to be seen of the worker while rows were asked for."""

    seconds: float = 0.0
    #: Turns for which a model's state was brought in, and the bytes of that.
    moves: int = 0
    moved_nbytes: int = 0
    batches: int = 0
    #: Device bytes, at each look.
    held_nbytes: list[int] = field(default_factory=list)
    #: The most ever held.
    peak_nbytes: int = 0
    #: Of the worker's process, at the end.
    resident_nbytes: int = 0
    #: Transactions of the database, of sessions and worker.
    transactions: int = 0
    #: Iterations of the training beside.
    iterations: int = 0


class Sessions:
    """Sessions of role bench, one a thread: a session keeps its way to the worker open from row to row."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._own = threading.local()

    @property
    def own(self) -> psycopg.Connection[Any]:
        """The calling thread's session."""
        if not hasattr(self._own, "session"):
            self._own.session = psycopg.connect(self._dsn, autocommit=True)
        session: psycopg.Connection[Any] = self._own.session
        return session

    def query(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run a query in the calling thread's session."""
        return self.own.execute(query, arguments).fetchall()

    def ask(self, model: Model, row: int) -> Asked:
        """Ask for one row's prediction."""
        ((ms, prediction),) = self.query(_ASK, model.name, row)
        return Asked(model=model.name, ms=ms, is_right=prediction in model.right[row])

    def ask_all(self, rows: Sequence[tuple[Model, int]]) -> list[Asked]:
        """Ask for one after another."""
        return [self.ask(model, row) for model, row in rows]

    def ask_at_once(self, parts: Sequence[Sequence[tuple[Model, int]]]) -> list[Asked]:
        """Ask for each part in a session of its own."""
        with ThreadPoolExecutor(len(parts)) as sessions:
            return [asked for part in sessions.map(self.ask_all, parts) for asked in part]


class Watch:
    """Looks at the worker, as a superuser; `training` is the job that runs beside, if any."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.training: int | None = None

    def settle(self) -> float:
        """Wait until the worker has nothing more to prepare; return for how many seconds."""
        began = quiet_from = time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while time.monotonic() < quiet_from + _QUIET_FOR_S:
                if time.monotonic() > began + _LONGEST_SETTLING_S:
                    break
                time.sleep(_LOOK_EVERY_S)
                row = connection.execute(_DEVICE).fetchone()
                if row is None or (row[2] or 0) > _QUIET:
                    quiet_from = time.monotonic()
        return time.monotonic() - began

    @contextmanager
    def looking(self) -> Iterator[Seen]:
        """Fill what is yielded; it is complete at the end."""
        seen, ended = Seen(), threading.Event()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            before = self._counts(connection)
            looks = threading.Thread(target=self._look, args=(connection, seen, ended))
            looks.start()
            began = time.monotonic()
            try:
                yield seen
            finally:
                seen.seconds = time.monotonic() - began
                ended.set()
                looks.join()
            at_end = self._transactions(connection), self._iterations(connection)
            time.sleep(_TOLD_AFTER_S)
            after = self._counts(connection)
            seen.moves, seen.moved_nbytes, seen.batches = (after[place] - before[place] for place in range(3))
            seen.transactions = at_end[0] - before[3]
            seen.iterations = at_end[1] - before[4]

    def _look(self, connection: psycopg.Connection[Any], seen: Seen, ended: threading.Event) -> None:
        while not ended.wait(_LOOK_EVERY_S):
            row = connection.execute(_DEVICE).fetchone()
            if row is not None:
                seen.held_nbytes.append(row[0] or 0)
                seen.peak_nbytes = max(seen.peak_nbytes, row[1] or 0)
                seen.resident_nbytes = resident_nbytes(row[3])

    def _counts(self, connection: psycopg.Connection[Any]) -> tuple[int, ...]:
        row = connection.execute(_SERVED).fetchone()
        assert row is not None
        return (*row, self._transactions(connection), self._iterations(connection))

    def _transactions(self, connection: psycopg.Connection[Any]) -> int:
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def _iterations(self, connection: psycopg.Connection[Any]) -> int:
        query = "SELECT coalesce(iteration, 0) FROM tensile.jobs WHERE id = %s"
        row = connection.execute(query, [self.training]).fetchone()
        return 0 if row is None else int(row[0])


def resident_nbytes(pid: int) -> int:
    """Return what of a process is in the machine's memory."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def until(done: Callable[[], bool], *, patience_s: float) -> None:
    """Wait for something.  Raises RuntimeError when it does not come."""
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError("it took too long")
        time.sleep(0.05)
