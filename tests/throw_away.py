"""Servers and databases that are thrown away: where they lie, and copies of templates.

A database is some 300 files and 10 MB, most tests have one of their own, and a disk's file system takes
longer for them than memory does.
"""

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

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
