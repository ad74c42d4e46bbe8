"""Has the catalog's tables and views to itself for a transaction, without standing in anybody's way for it.

An install changes triggers, policies, views and tables one after another.  Taken as they come, its locks
would meet those of workers and sessions the other way round, and PostgreSQL would end one of them: a job, or
the install.  A session that waits for its training keeps its locks until the training has ended, and who
waits for them has everybody behind it, the training's worker too.  So all are taken at once or not at all,
and none is waited for.
"""

import time
from collections.abc import Callable
from datetime import timedelta

import psycopg
from psycopg import sql

from tensile_db.errors import CatalogInUse

#: Between two attempts: workers' transactions take milliseconds, twice a second.
_PAUSE_S = 0.05

_RELATIONS = """
SELECT relname, relkind = 'v', pg_catalog.pg_get_userbyid(relowner) FROM pg_catalog.pg_class
WHERE relnamespace = pg_catalog.to_regnamespace('tensile') AND relkind IN ('r', 'p', 'v')
ORDER BY oid
"""

_OLDEST_HOLDER = """
SELECT a.pid, a.usename, a.application_name, pg_catalog.clock_timestamp() - a.xact_start
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_class c ON c.oid = l.relation AND c.relnamespace = pg_catalog.to_regnamespace('tensile')
JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid AND a.xact_start IS NOT NULL
WHERE l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
    AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()
ORDER BY a.xact_start LIMIT 1
"""

#: One that is prepared to be committed is no process's any more.
_OLDEST_PREPARED = """
SELECT p.gid FROM pg_catalog.pg_prepared_xacts p
JOIN pg_catalog.pg_locks own ON own.pid IS NULL AND own.transactionid = p.transaction
JOIN pg_catalog.pg_locks l ON l.pid IS NULL AND l.virtualtransaction = own.virtualtransaction
JOIN pg_catalog.pg_class c ON c.oid = l.relation AND c.relnamespace = pg_catalog.to_regnamespace('tensile')
WHERE p.database = pg_catalog.current_database()
ORDER BY p.prepared LIMIT 1
"""

#: Two installs into one database have this advisory lock in turns (bytes of "tensile").
_INSTALLS = 0x74656E73696C65

# A session may hold it without a transaction.
_INSTALLING = """
SELECT a.pid, a.usename, a.application_name,
    pg_catalog.clock_timestamp() - coalesce(a.xact_start, a.state_change, a.backend_start)
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
    AND (l.classid::bigint << 32) + l.objid::bigint = %s
"""


def wait_for_turn(connection: psycopg.Connection, *, patience_s: float) -> None:
    """Keep other installs out until the transaction's end.

    Any login can take that lock and keep it, so that its holder is named.  Raises CatalogInUse after a time.
    """

    def take() -> bool:
        attempt = "SELECT pg_catalog.pg_try_advisory_xact_lock(%s)"
        return connection.execute(attempt, [_INSTALLS]).fetchone() == (True,)

    if not _succeeds(take, patience_s):
        holder = connection.execute(_INSTALLING, [_INSTALLS]).fetchone()
        raise CatalogInUse(
            f"another install was under way for {patience_s:.0f} s{_named(holder, 'it is')}",
            hint="If that is none of tensile-db: SELECT pg_terminate_backend(process) ends the session.",
        )


def lock_catalog(connection: psycopg.Connection, *, patience_s: float) -> None:
    """Lock every table and view of the catalog until the transaction's end; of a new database there are none.

    The connection is in a transaction.  Raises CatalogInUse where some are in use for all that time, seconds.
    """
    relations = connection.execute(_RELATIONS).fetchall()
    if not relations:
        return
    views = [_lock_of_view(name, owner) for name, is_view, owner in relations if is_view]
    tables = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(
        sql.SQL(", ").join(sql.Identifier("tensile", name) for name, is_view, _ in relations if not is_view)
    )

    def take() -> bool:
        try:
            # A savepoint: what an attempt had taken is let go of with it.
            with connection.transaction():
                _take(connection, [*views, tables])
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    if not _succeeds(take, patience_s):
        raise _in_use(connection, patience_s)


def _succeeds(attempt: Callable[[], bool], patience_s: float) -> bool:
    """Try again and again; return whether it succeeds within so many seconds."""
    until_s = time.monotonic() + patience_s
    while not attempt():
        if time.monotonic() > until_s:
            return False
        time.sleep(_PAUSE_S)
    return True


def _lock_of_view(name: str, owner: str) -> sql.Composed:
    """Return a statement that locks a view and changes nothing.

    LOCK TABLE would lock all that the view reads, too: pg_authid, without which nobody can connect.
    """
    view, role = sql.Identifier("tensile", name), sql.Identifier(owner)
    return sql.SQL("ALTER VIEW {} OWNER TO {}").format(view, role)


def _take(connection: psycopg.Connection, locks: list[sql.Composed]) -> None:
    (before,) = connection.execute("SELECT pg_catalog.current_setting('lock_timeout')").fetchone() or ("0",)
    # The least there is, for ALTER knows no NOWAIT.
    connection.execute("SET LOCAL lock_timeout = '1ms'")
    for lock in locks:
        connection.execute(lock)
    connection.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", [before])


def _in_use(connection: psycopg.Connection, patience_s: float) -> CatalogInUse:
    in_use = f"the catalog was in use for {patience_s:.0f} s"
    holder = connection.execute(_OLDEST_HOLDER).fetchone()
    prepared = connection.execute(_OLDEST_PREPARED).fetchone() if holder is None else None
    if prepared is not None:
        (name,) = prepared
        literal = sql.quote(name, connection)
        return CatalogInUse(
            f"{in_use}, by the prepared transaction {literal}",
            hint=f"Where nobody will COMMIT PREPARED it: ROLLBACK PREPARED {literal}.",
        )
    return CatalogInUse(
        f"{in_use}{_named(holder, 'the oldest transaction is that of')}",
        hint="Install again when those have ended that are open for long;"
        " SELECT pg_terminate_backend(process) ends a session that idles in one.",
    )


def _named(holder: tuple[int, str, str, timedelta] | None, it_is: str) -> str:
    """Return a clause that names a session, and for how long it has been at what it is at."""
    if holder is None:
        return ""
    pid, user, application, age = holder
    called = f"{user}, {application}" if application else user
    return f"; {it_is} process {pid} ({called}), {age.total_seconds():.0f} s"
