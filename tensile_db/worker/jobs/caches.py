"""Where jobs keep the rows that they have read, and the removal of what nobody needs any more.

A job's folder outlives an attempt that was killed, so that the next one reads the same rows, though the
table may have changed.  Its name has the time of the submission, for a database made anew numbers its jobs
from 1 again.  The trials of a search have one folder together: the first of them reads, the others take what
it has read, and it is removed with the search.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection

from tensile_db.catalog import jobs
from tensile_db.catalog.jobs import JobRow
from tensile_db.errors import InvalidRequest
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.host import host_identity

_LOCK_POLL_S = 0.1

#: Why a folder cannot be made, where no waiting mends it as it does a full disk.
_LASTING = (
    errno.EACCES,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)

_JOB_FOLDER = re.compile(r"job-(\d+)-\d+")

#: What says where a database is -> the variable that does, where the connection string does not.
_WHERE = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "service": "PGSERVICE",
}


def open_cache(config: WorkerConfig) -> Path:
    """Return the folder for the jobs of the worker's database, which only this user may enter.

    Raises InvalidRequest where it is somebody else's, where it cannot be made, and where there is no telling
    the database.
    """
    try:
        where = conninfo_to_dict(config.dsn)
    except psycopg.ProgrammingError as error:
        raise InvalidRequest(
            f"--dsn is no connection string: {str(error).strip()}",
            hint="Write 'host=db dbname=app user=gpu1' or postgresql://gpu1@db/app.",
        ) from error
    parent = config.cache_dir or Path(tempfile.gettempdir()) / f"tensile_db-{os.getuid()}"
    _make(parent, parents=True)
    # Names in a folder that all may write to can be taken by anybody.
    if parent.is_symlink() or parent.stat().st_uid != os.getuid():
        raise InvalidRequest(
            f"the cache folder {parent} belongs to somebody else", hint="Name another one: --cache FOLDER."
        )
    found = {part: where.get(part) or os.environ.get(variable) for part, variable in _WHERE.items()}
    # libpq's default for the database is the user's name.
    found["dbname"] = found["dbname"] or where.get("user") or os.environ.get("PGUSER")
    database = repr(list(found.values()))
    folder = parent / f"database-{hashlib.sha256(database.encode()).hexdigest()[:16]}"
    _make(folder)
    return folder


def _make(folder: Path, *, parents: bool = False) -> None:
    """Make a private folder; raise InvalidRequest where that will never do."""
    try:
        folder.mkdir(parents=parents, exist_ok=True, mode=0o700)
    except OSError as error:
        if error.errno not in _LASTING:
            raise
        raise InvalidRequest(
            f"the cache folder {folder} cannot be made: {error.strerror}",
            hint="Name one that you may write to: --cache FOLDER.",
        ) from error


def cache_name(cache: Path) -> str:
    """Return a name of the folder that no other has, on any machine."""
    return f"{host_identity()}:{cache}"


def job_folder(cache: Path, job: JobRow) -> Path:
    """Return the folder of a job's rows; it need not exist.  A search's trials have their search's."""
    owner, at = job.id, job.created_at
    if job.search_id is not None and job.search_created_at is not None:
        owner, at = job.search_id, job.search_created_at
    return cache / f"job-{owner}-{int(at.timestamp() * 1_000_000)}"


@contextmanager
def locked(folder: Path, check: Callable[[], None], *, name: str = "lock") -> Iterator[None]:
    """Be the only one, of all threads and processes of this machine, to make files of a shared folder.

    The lock goes with a process that dies.  check: called while others have it; may raise to give up.
    name: of the lock; who takes another one makes other files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                check()
                time.sleep(_LOCK_POLL_S)
            else:
                break
        yield


def sweep(conn: Connection, cache: Path) -> None:
    """Remove the folders of jobs that have ended."""
    folders = [
        (int(match[1]), path)
        for path in cache.iterdir()
        if (match := _JOB_FOLDER.fullmatch(path.name)) is not None
    ]
    needed = jobs.unfinished(conn, [job for job, _ in folders])
    for job, path in folders:
        if job not in needed:
            shutil.rmtree(path, ignore_errors=True)
