"""Reads a job's rows, as the role that submitted it, under one snapshot, straight into files."""

import errno
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from tensile_db.data.columns import Column, Form, Nulls, tid_texts
from tensile_db.data.copy_binary import TRAILER, BadRow, BlockParser, Row, fields_of, strip_header
from tensile_db.data.interrupt import Interrupt
from tensile_db.data.rewritten import was_rewritten
from tensile_db.data.server_errors import sentence, unsent_rows
from tensile_db.data.source import Source, Task, describe, missing_relation_or_column
from tensile_db.data.stored_rows import RowsWriter, StoredRows
from tensile_db.data.submitter import COPY_ROWS, as_submitter, make_rows_function
from tensile_db.errors import BadData, Forbidden, JobCancelled, QuotaExceeded, TensileError, UndefinedSource

#: Rows parsed together: few enough to stay in the processor's caches, many enough for numpy.
BLOCK_ROWS = 4096
BLOCK_NBYTES = 4 * 2**20

#: What is decrypted, but not taken yet, shows nowhere that can be waited for.
_LOOK_ANYWAY_MS = 100

#: How often rows are read anew that others rewrote after the snapshot.
_MOST_READINGS = 5


class _Rewritten(Exception):
    """What was read had been rewritten since the snapshot: rows are missing."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was asked of a source."""

    #: OIDs of the relation, and of the role as which it is read.
    relation: int
    submitter: int
    #: Of the session that asked, by name; those that are not given are the connection's.
    settings: Mapping[str, str] = field(default_factory=dict)
    features: Sequence[str] | None
    target: str | None
    wants_target: bool
    task: Task | None = None
    #: The relation's name when it was asked for.
    known_as: str = ""
    #: Of features that are numbers or texts.
    nulls: Nulls = Nulls.REFUSED
    #: The column that names rows, and orders them; None for the primary key.
    key: str | None = None
    #: The column that tells which rows are held out.
    held_out: str | None = None
    #: Of rows whose target is NULL.
    null_targets: Nulls = Nulls.REFUSED


def read(
    connection: psycopg.Connection[Any],
    reading: Reading,
    folder: Path,
    *,
    max_nbytes: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Source, StoredRows]:
    """Read all rows into `folder`, which must not be in use.

    connection: outside a transaction, in autocommit; it may be closed afterwards.
    progress: told the rows read so far; may raise to stop.
    check: called in another thread, also while the server sends nothing; may raise to stop.
    Raises Forbidden, UndefinedSource, UndefinedColumn, AmbiguousTarget, InvalidRequest, NullInData,
    RaggedArray, BadData, QuotaExceeded, JobCancelled; psycopg.Error where the connection is lost.
    """
    source = None
    try:
        for _ in range(_MOST_READINGS):
            with as_submitter(connection, reading.submitter, reading.settings), Interrupt(connection, check):
                source = _describe(connection, reading)
                with suppress(_Rewritten):
                    return source, _copy(connection, source, folder, max_nbytes, progress)
        raise BadData(
            "the rows could not be read: each time, others had rewritten a table before it could be locked",
            hint="Submit the job again when TRUNCATE, ALTER TABLE and the like have ended.",
        )
    except psycopg.errors.InsufficientPrivilege as error:
        raise Forbidden(sentence(error), hint="Ask its owner to GRANT SELECT on it to you.") from error
    except psycopg.errors.QueryCanceled as error:
        raise JobCancelled("the reading of the rows was cancelled on the server") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise QuotaExceeded(
            f"the worker's disk has no room for the rows: {error.strerror}",
            hint="Make room, name another folder by --cache, or train on fewer rows by a view.",
        ) from error
    except psycopg.Error as error:
        if (gone := missing_relation_or_column(error, source)) is not None:
            raise gone from error
        columns = () if source is None else source.columns
        unsent = unsent_rows(error, [column for column in columns if column.cast.startswith("float8")])
        if unsent is None:
            raise
        raise unsent from error


def describe_source(connection: psycopg.Connection[Any], reading: Reading) -> Source:
    """Return what `read` would read.  Raises as it does."""
    with as_submitter(connection, reading.submitter, reading.settings):
        return _describe(connection, reading)


def _describe(connection: psycopg.Connection[Any], reading: Reading) -> Source:
    return describe(
        connection,
        reading.relation,
        features=reading.features,
        target=reading.target,
        wants_target=reading.wants_target,
        task=reading.task,
        known_as=reading.known_as,
        nulls=reading.nulls,
        key=reading.key,
        held_out=reading.held_out,
        null_targets=reading.null_targets,
    )


def _copy(
    connection: psycopg.Connection[Any],
    source: Source,
    folder: Path,
    max_nbytes: int | None,
    progress: Callable[[int], None],
) -> StoredRows:
    make_rows_function(connection, source.select_statement())
    parser = BlockParser(source.columns)
    writer = RowsWriter(folder, source.columns, max_nbytes)

    def store(rows: list[Row]) -> None:
        try:
            writer.append(parser.parse(rows))
        except BadRow as bad:
            raise _about(bad, source, rows[bad.row], writer.count + bad.row) from None

    try:
        with (
            # A block is parsed, hashed and written while the next one comes.
            ThreadPoolExecutor(1, thread_name_prefix="tensile-store") as pool,
            connection.cursor() as cursor,
            cursor.copy(COPY_ROWS),
        ):
            stored: Future[None] | None = None
            for rows in _blocks(connection.pgconn):
                if stored is not None:
                    stored.result()
                    progress(writer.count)
                stored = pool.submit(store, rows)
            if stored is not None:
                stored.result()
                progress(writer.count)
        _require_unchanged(connection, source)
        if was_rewritten(connection):
            raise _Rewritten
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _require_unchanged(connection: psycopg.Connection[Any], source: Source) -> None:
    """Raise UndefinedSource unless what was read by its name, and is locked now, is what was meant."""
    name = source.name.identifier.as_string(connection)
    # Not a look into pg_class, which would show the snapshot's names.
    row = connection.execute("SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid::int8", [name]).fetchone()
    if row is None or row[0] != source.relation:
        raise UndefinedSource(
            f"{name} was renamed or replaced while it was being read", hint="Submit the job again."
        )


def _blocks(pgconn: psycopg.pq.abc.PGconn) -> Iterator[list[Row]]:
    """Yield the rows of the COPY under way, each as sent, some at a time.

    By libpq's own calls: psycopg's loop passes through five Python functions for each row.  None of them may
    wait, for psycopg keeps the interpreter's lock meanwhile, and all jobs would wait as well, also those that
    the server waits for: a view's rows may be predicted by this very process.
    """
    rows: list[Row] = []
    nbytes = 0
    begun = is_silent = False
    while True:
        message_nbytes, message = pgconn.get_copy_data(1)
        if message_nbytes == 0:
            _take_more(pgconn, wait=is_silent)
            is_silent = True
            continue
        if message_nbytes < 0:
            break
        is_silent = False
        # The server sends a message for each row; the header comes with the first, the trailer alone.
        row: Row = message if begun else strip_header(message)
        begun = True
        if len(row) <= len(TRAILER):
            continue
        rows.append(row)
        nbytes += message_nbytes
        if len(rows) == BLOCK_ROWS or nbytes >= BLOCK_NBYTES:
            yield rows
            rows, nbytes = [], 0
    _end_copy(pgconn)
    if rows:
        yield rows


def _end_copy(pgconn: psycopg.pq.abc.PGconn) -> None:
    """Take what the server says at the end, all of it, for only then is the connection idle."""
    failures = []
    try:
        while (result := _next_result(pgconn)) is not None:
            if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
                failures.append(psycopg.errors.error_from_result(result))
    except psycopg.OperationalError:
        # Where the server said why it leaves, that tells more.
        if not failures:
            raise
    if failures:
        raise failures[0]


def _next_result(pgconn: psycopg.pq.abc.PGconn) -> psycopg.pq.abc.PGresult | None:
    while pgconn.is_busy():
        _take_more(pgconn, wait=True)
    return pgconn.get_result()


def _take_more(pgconn: psycopg.pq.abc.PGconn, *, wait: bool) -> None:
    """Take what the server has sent; first wait for it, without the interpreter's lock.

    wait: only where nothing was there before, for each wait gives the lock away, also where rows are there.
    """
    if wait:
        readable = select.poll()
        readable.register(pgconn.socket, select.POLLIN)
        readable.poll(_LOOK_ANYWAY_MS)
    pgconn.consume_input()


def _about(bad: BadRow, source: Source, row: Row, place: int) -> TensileError:
    """Return the error that names the row to people."""
    name = f"number {place + 1}"
    if source.key is not None and (field := fields_of(row)[-1]) is not None:
        name = f"{source.key.name}={_text(field, source.key)}"
    return bad.error(f'column "{bad.column}" of row {name} {bad.problem}', hint=bad.hint)


def _text(field: bytes, key: Column) -> str:
    if key.form is Form.TEXT:
        return field.decode()
    values = np.frombuffer(field, key.wire_dtype)
    return tid_texts(values)[0] if values.dtype.kind == "V" else str(values[0])
