"""Servers and databases that are thrown away: where they lie, and copies of templates.

A database is some 300 files and 10 MB, most tests have one of their own, and a disk's file system takes
longer for them than memory does.
"""

import shutil
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

_IN_MEMORY = Path("/dev/shm")
#: More than the servers of all processes of a test run ever held; where less is free, they lie on the disk.
_ROOM_NBYTES = 4 * 2**30


@contextmanager
def server_folder(prefix):
    """Give a folder of some name that a server's user can reach, even when root runs the tests."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=_place()) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def _place():
    try:
        free_nbytes = shutil.disk_usage(_IN_MEMORY).free
    except OSError:
        return None
    return _IN_MEMORY if free_nbytes >= _ROOM_NBYTES else None


class KeptConnection:
    """A session that is kept from one statement to the next; to begin one takes longer than most statements.

    Where the last session has ended, with its server or because it was told to, there is a new one, and where
    it is busy in another thread, one for this statement alone.  What a statement set is reset before the
    next; what PL/Python has loaded stays, and what a database or role was given since it began does not come.
    """

    def __init__(self, dsn):
        self._dsn = dsn
        self._connection = None
        self._in_use = threading.Lock()

    def execute(self, statement, arguments):
        """Run a statement in a transaction of its own; return its rows as dictionaries."""
        if not self._in_use.acquire(blocking=False):
            with self._connect() as connection:
                return _rows(connection, statement, arguments)
        try:
            if not self._is_as_new():
                self._connection = self._connect()
            return _rows(self._connection, statement, arguments)
        finally:
            self._in_use.release()

    def close(self):
        """End the session; statements after that have one each."""
        self._in_use.acquire()
        if self._connection is not None:
            self._connection.close()

    def _is_as_new(self):
        if self._connection is None:
            return False
        try:
            self._connection.execute("DISCARD ALL")
        except psycopg.OperationalError:
            self._connection.close()
            return False
        return True

    def _connect(self):
        # What is prepared would be discarded.
        return psycopg.connect(self._dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None)


def _rows(connection, statement, arguments):
    cursor = connection.execute(statement, arguments)
    return cursor.fetchall() if cursor.description else []


@contextmanager
def copied_database(cluster, name, template):
    """Make a copy of a database, give its superuser's connection string, and drop it at the end."""
    with psycopg.connect(cluster.dsn(dbname="postgres"), autocommit=True) as connection:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        # As versions before 15 always do; later ones would log each page, which takes twice as long.
        if connection.info.server_version >= 150000:
            statement += sql.SQL(" STRATEGY file_copy")
        connection.execute(statement)
        yield cluster.dsn(dbname=name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
