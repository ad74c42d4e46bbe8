"""Has the catalog's tables and views to itself for a transaction, without standing in anybody's way for it.

An install changes triggers, policies, views and tables one after another.  Taken as they come, its locks
would meet those of workers and sessions the other way round, and PostgreSQL would end one of them: a job, or
the install.  A session that waits for its training keeps its locks until the training has ended, and who
waits for them has everybody behind it, the training's worker too.  So all are taken at once or not at all,
and none is waited for.
"""

import time
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
    until_s = time.monotonic() + patience_s
    while True:
        try:
            # A savepoint: what an attempt had taken is let go of with it.
            with connection.transaction():
                _take(connection, [*views, tables])
        except psycopg.errors.LockNotAvailable as error:
            if time.monotonic() > until_s:
                raise _in_use(connection, patience_s) from error
            time.sleep(_PAUSE_S)
        else:
            return


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
    holder: tuple[int, str, str, timedelta] | None = connection.execute(_OLDEST_HOLDER).fetchone()
    named = ""
    if holder is not None:
        pid, user, application, age = holder
        called = f"{user}, {application}" if application else user
        named = f"; the oldest transaction is that of process {pid} ({called}), {age.total_seconds():.0f} s"
    return CatalogInUse(
        f"the catalog was in use for {patience_s:.0f} s{named}",
        hint="Install again when those have ended that are open for long;"
        " SELECT pg_terminate_backend(process) ends a session that idles in one.",
    )
