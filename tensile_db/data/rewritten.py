"""Whether what a transaction has read was rewritten between its snapshot and its locks.

A transaction takes its snapshot first, and waits for a table's lock then.  Whoever held the lock may have
emptied or rewritten the table meanwhile (TRUNCATE, a column's new type, a partition in another's place): the
snapshot sees none of the new rows, and the old ones are gone.  The server does not say so (PostgreSQL's
manual, chapter on concurrency control, "Caveats").
"""

from typing import Any

from psycopg import Connection

# Tables are locked until the transaction ends.  pg_class shows what the snapshot sees, pg_relation_filenode()
# and pg_partition_root() what there is now.
_REWRITTEN = """
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
        WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted
            AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                              WHERE d.datname = pg_catalog.current_database())
            AND (c.oid IS NULL
                OR c.relkind IN ('r', 'm') AND c.relfilenode <> 0
                    AND c.relfilenode <> pg_catalog.pg_relation_filenode(c.oid)
                OR NOT c.relispartition AND pg_catalog.pg_partition_root(c.oid) <> c.oid))"""


def was_rewritten(connection: Connection[Any]) -> bool:
    """Whether rows may be missing from what this transaction, under one snapshot, has read."""
    row = connection.execute(_REWRITTEN).fetchone()
    assert row is not None
    return bool(row[0])
