"""What a job's thread writes to the catalog, however the connection does.

Records of a job's progress are put off and written together, at most twice a second; while the database is
away they are kept, and the job goes on.  What must not be missed is tried again with growing pauses.
"""

import itertools
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import fence as fences
from tensile_db.catalog.fence import Fence
from tensile_db.data import server_errors

T = TypeVar("T")

Write = Callable[[Connection], object]

log = logging.getLogger(__name__)

_FLUSH_EVERY_S = 0.5
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
#: The database may be away this long before a job that needs it gives up.
_PATIENCE_S = 600.0
#: Records kept while the database is away; the oldest go first.
_MOST_PENDING = 1000
#: A transaction that met others in such a way that one of them had to go, or that pg_cancel_backend ended: a
#: worker's statements have no timeout.
_BROKEN_OFF = ("40001", "40P01", "57014")
#: After so many it is tried again even where waiting has no point: the others have been let through.
_TRIES_AT_LEAST = 3
_LOCK_TIMEOUT = "55P03"
_DISK_FULL = "53100"


class Records:
    """One attempt's writes.  Used by the job's thread only."""

    def __init__(self, engine: Engine, fence: Fence, give_up: Callable[[], bool]) -> None:
        """give_up: asked while the database is away, whether waiting for it has become pointless."""
        self.fence = fence
        self._engine = engine
        self._give_up = give_up
        self._pending: list[Write] = []
        self._progress: dict[str, Any] = {}
        self._next_flush = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def later(self, write: Write) -> None:
        """Put a write off; writes keep their order."""
        self._pending.append(write)
        del self._pending[:-_MOST_PENDING]

    def note(self, **values: Any) -> None:
        """Put values for the job's row off."""
        self._progress |= values

    def progress(self, **values: Any) -> None:
        """Put values for the job's row off, and write what was put off if it is time."""
        self.note(**values)
        if time.monotonic() >= self._next_flush:
            self.flush()

    def flush(self) -> None:
        """Write what was put off, or keep it where the database is away or busy.  Raises LostLease."""
        if not self._pending and not self._progress:
            return
        try:
            with self._engine.begin() as conn:
                self._write_pending(conn)
        except (DBAPIError, psycopg.Error) as error:
            if not is_passing(error):
                raise
            log.warning("job %s keeps its records: the database is away or busy (%s)", self.fence.job, error)
            self._next_flush = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            return
        self._written()

    def must(self, work: Callable[[Connection], T], *, waits_for_locks: bool = True) -> T:
        """Carry out a transaction, after what was put off, and return its result.

        Tried again where the database is away, and where the transaction met others': up to ten minutes, or
        until there is no point; where PostgreSQL broke it off, or somebody did, a few times even then.
        waits_for_locks: also after a lock was waited for in vain, half a minute by itself.
        Raises LostLease, and the database's error in the end.
        """
        if self._pending or self._progress:
            # Apart, for it locks the job's row, which the heartbeat needs while `work` may take long.
            self._insist(self._write_pending)
            self._written()
        return self._insist(work, waits_for_locks=waits_for_locks)

    def _insist(self, work: Callable[[Connection], T], *, waits_for_locks: bool = True) -> T:
        deadline = time.monotonic() + _PATIENCE_S
        pause_s = _FIRST_PAUSE_S
        for tries in itertools.count(1):
            try:
                with self._engine.begin() as conn:
                    return work(conn)
            except (DBAPIError, psycopg.Error) as error:
                sqlstate = _sqlstate(error)
                if not is_passing(error) or (sqlstate == _LOCK_TIMEOUT and not waits_for_locks):
                    raise
                has_point = sqlstate in _BROKEN_OFF and tries <= _TRIES_AT_LEAST
                if time.monotonic() + pause_s > deadline or (self._give_up() and not has_point):
                    raise
                log.warning("job %s waits for the database (%s)", self.fence.job, error)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError("the last try has raised")

    def drop(self) -> None:
        """Forget what was put off."""
        self._pending.clear()
        self._progress.clear()

    def _write_pending(self, conn: Connection) -> None:
        for write in self._pending:
            write(conn)
        if self._progress:
            fences.write(conn, self.fence, **self._progress)

    def _written(self) -> None:
        self.drop()
        self._pause_s = _FIRST_PAUSE_S
        self._next_flush = time.monotonic() + _FLUSH_EVERY_S


def is_passing(error: DBAPIError | psycopg.Error) -> bool:
    """Tell what is over some time from a refused statement.

    That is a lost connection, others' locks, a full disk, a statement that an administrator cancelled.
    """
    return is_connection_loss(error) or _sqlstate(error) in (*_BROKEN_OFF, _LOCK_TIMEOUT, _DISK_FULL)


def _sqlstate(error: DBAPIError | psycopg.Error) -> str | None:
    return getattr(error.orig if isinstance(error, DBAPIError) else error, "sqlstate", None)


def is_connection_loss(error: DBAPIError | psycopg.Error) -> bool:
    """Tell a lost connection, or a server that is starting or stopping, from a refused statement."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or server_errors.is_connection_loss(error.orig)
    return server_errors.is_connection_loss(error)
