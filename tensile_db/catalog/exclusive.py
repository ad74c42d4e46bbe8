"""Has the catalog's tables and views to itself for a transaction, without standing in anybody's way for it.

An install changes triggers, policies, views and tables one after another.  Taken as they come, its locks
would meet those of workers and sessions the other way round, and PostgreSQL would end one of them: a job, or
the install.  A session that waits for its training keeps its locks until the training has ended, and who
waits for them has everybody behind it, the training's worker too.  So all are taken at once or not at all,
and none is waited for.
"""

import time

import psycopg
from psycopg import sql

from tensile_db.errors import CatalogInUse

#: Between two attempts: workers' transactions take milliseconds, twice a second.
_PAUSE_S = 0.05
#: Sessions that an error names.
_NAMED = 3

_RELATIONS = """
SELECT relname FROM pg_catalog.pg_class
WHERE relnamespace = pg_catalog.to_regnamespace('tensile') AND relkind IN ('r', 'p', 'v')
ORDER BY oid
"""

_HOLDERS = """
SELECT DISTINCT a.pid, a.usename, a.application_name, a.xact_start
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_class c ON c.oid = l.relation AND c.relnamespace = pg_catalog.to_regnamespace('tensile')
JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
    AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()
ORDER BY a.xact_start
"""


def lock_catalog(connection: psycopg.Connection, *, patience_s: float) -> None:
    """Lock every table and view of the catalog until the transaction's end; of a new database there are none.

    The connection is in a transaction.  Raises CatalogInUse where some are in use for all that time, seconds.
    """
    names = [name for (name,) in connection.execute(_RELATIONS)]
    if not names:
        return
    lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(
        sql.SQL(", ").join(sql.Identifier("tensile", name) for name in names)
    )
    until_s = time.monotonic() + patience_s
    while True:
        try:
            # A savepoint: what an attempt had taken is let go of with it.
            with connection.transaction():
                connection.execute(lock)
        except psycopg.errors.LockNotAvailable as error:
            if time.monotonic() > until_s:
                raise _in_use(connection, patience_s) from error
            time.sleep(_PAUSE_S)
        else:
            return


def _in_use(connection: psycopg.Connection, patience_s: float) -> CatalogInUse:
    holders = connection.execute(_HOLDERS).fetchall()
    named = "; ".join(
        f"process {pid} of {user}{f' ({application})' if application else ''}, since {since:%H:%M:%S}"
        for pid, user, application, since in holders[:_NAMED]
    )
    return CatalogInUse(
        f"the catalog was in use for {patience_s:.0f} s" + (f": {named}" if named else ""),
        hint="Install again when these have ended; SELECT pg_terminate_backend(process) ends a session.",
    )
