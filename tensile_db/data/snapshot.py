"""Reads a job's rows, as the role that submitted it, under one snapshot, straight into files.

The worker's login is a member of the submitter (tensile_grant_usage) and becomes it for the transaction, so
that the server's own checks, row-level security included, decide what is read.

Reading may run the submitter's code: functions in views, policies and index expressions.  Such code could
become anybody that the login may become (SET ROLE asks what the session's user is a member of, not the
current one), and read what is theirs.  The server forbids that within a function that is SECURITY DEFINER.
So the rows come out of one, of the submitter's own, that lasts as long as the transaction; a row at a time,
in about the time that the plain query takes (bench/reader.py).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from psycopg import sql

from tensile_db.data.columns import Column, Form, tid_texts
from tensile_db.data.copy_binary import TRAILER, BadRow, BlockParser, Row, fields_of, strip_header
from tensile_db.data.interrupt import Interrupt
from tensile_db.data.source import Source, Task, describe
from tensile_db.data.stored_rows import RowsWriter, StoredRows
from tensile_db.errors import BadData, Forbidden, JobCancelled, TensileError, UndefinedSource

#: Rows parsed together: few enough to stay in the processor's caches, many enough for numpy.
BLOCK_ROWS = 4096
BLOCK_NBYTES = 4 * 2**20

_SETTINGS = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    # Row-level security filters what the submitter sees; off would raise an error instead.
    "SET LOCAL row_security = on",
    "SET LOCAL search_path = pg_catalog, pg_temp",
    # A scan that joins another one in the middle, or workers that race, would change the rows' order.
    "SET LOCAL synchronize_seqscans = off",
    "SET LOCAL max_parallel_workers_per_gather = 0",
    "SET LOCAL client_encoding = 'UTF8'",
    "SET LOCAL statement_timeout = 0",
    "SET LOCAL idle_in_transaction_session_timeout = 0",
    # To look into the function's query would already be to open what it reads.
    "SET LOCAL check_function_bodies = off",
)

_FUNCTION = sql.SQL("""
    CREATE FUNCTION pg_temp.tensile_rows() RETURNS SETOF pg_catalog.bytea
    LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER ROWS 1000000 AS {}""")

_COPY = "COPY (SELECT pg_temp.tensile_rows()) TO STDOUT (FORMAT binary)"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was asked of a source."""

    #: OIDs of the relation, and of the role as which it is read.
    relation: int
    submitter: int
    features: Sequence[str] | None
    target: str | None
    wants_target: bool
    task: Task | None = None


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
    RaggedArray, BadData, QuotaExceeded, JobCancelled.
    """
    try:
        with as_submitter(connection, reading.submitter), Interrupt(connection, check):
            source = _describe(connection, reading)
            return source, _copy(connection, source, folder, max_nbytes, progress)
    except psycopg.errors.InsufficientPrivilege as error:
        raise Forbidden(_sentence(error), hint="Ask its owner to GRANT SELECT on it to you.") from error
    except psycopg.errors.UndefinedTable as error:
        raise UndefinedSource(_sentence(error), hint="It was dropped; submit the job again.") from error
    except psycopg.errors.QueryCanceled as error:
        raise JobCancelled("the reading of the rows was cancelled on the server") from error
    except (psycopg.DataError, psycopg.errors.RaiseException) as error:
        raise BadData(
            f"the server could not send the rows: {_sentence(error)}",
            hint="SELECT from the source to see where it fails.",
        ) from error


def describe_source(connection: psycopg.Connection[Any], reading: Reading) -> Source:
    """Return what `read` would read.  Raises as it does."""
    with as_submitter(connection, reading.submitter):
        return _describe(connection, reading)


class as_submitter:  # noqa: N801  # reads as a phrase: with as_submitter(...)
    """A read-only transaction under one snapshot, as the role with this OID."""

    def __init__(self, connection: psycopg.Connection[Any], submitter: int) -> None:
        self._connection = connection
        self._submitter = submitter
        self._transaction = connection.transaction(force_rollback=True)

    def __enter__(self) -> None:
        row = self._connection.execute(
            "SELECT rolname FROM pg_catalog.pg_roles WHERE oid = %s", [self._submitter]
        ).fetchone()
        if row is None:
            raise Forbidden("the role that submitted the job does not exist any more")
        self._transaction.__enter__()
        try:
            for setting in _SETTINGS:
                self._connection.execute(setting)
            try:
                self._connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(row[0])))
            except psycopg.errors.InsufficientPrivilege:
                raise Forbidden(
                    f'the worker may not read as role "{row[0]}"',
                    hint=f"Have an administrator call tensile_grant_usage('{row[0]}').",
                ) from None
        except BaseException as error:
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, *exception: Any) -> None:
        self._transaction.__exit__(*exception)


def _describe(connection: psycopg.Connection[Any], reading: Reading) -> Source:
    return describe(
        connection,
        reading.relation,
        features=reading.features,
        target=reading.target,
        wants_target=reading.wants_target,
        task=reading.task,
    )


def _copy(
    connection: psycopg.Connection[Any],
    source: Source,
    folder: Path,
    max_nbytes: int | None,
    progress: Callable[[int], None],
) -> StoredRows:
    _make_function(connection, source)
    parser = BlockParser(source.columns)
    writer = RowsWriter(folder, source.columns, max_nbytes)
    try:
        with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            for rows in _blocks(copy):
                try:
                    writer.append(parser.parse(rows))
                except BadRow as bad:
                    raise _about(bad, source, rows[bad.row], writer.count + bad.row) from None
                progress(writer.count)
        _require_unchanged(connection, source)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _make_function(connection: psycopg.Connection[Any], source: Source) -> None:
    """Make the function that yields the rows; from here on the transaction writes nothing."""
    query = source.select_statement().as_string(connection)
    try:
        connection.execute(_FUNCTION.format(sql.Literal(query)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise Forbidden(
            f"the rows cannot be read without a temporary function: {_sentence(error)}",
            hint="An administrator allows it by GRANT TEMPORARY ON DATABASE ... TO the submitter.",
        ) from error
    connection.execute("SET TRANSACTION READ ONLY")


def _require_unchanged(connection: psycopg.Connection[Any], source: Source) -> None:
    """Raise UndefinedSource unless what was read by its name, and is locked now, is what was meant."""
    name = source.name.identifier.as_string(connection)
    # Not a look into pg_class, which would show the snapshot's names.
    row = connection.execute("SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid::int8", [name]).fetchone()
    if row is None or row[0] != source.relation:
        raise UndefinedSource(
            f"{name} was renamed or replaced while it was being read", hint="Submit the job again."
        )


def _blocks(copy: psycopg.Copy) -> Iterator[list[Row]]:
    """Yield the rows of a COPY, each as sent, some at a time."""
    rows: list[Row] = []
    nbytes = 0
    begun = False
    for message in copy:
        # The server sends a message for each row; the header comes with the first, the trailer alone.
        row = message if begun else strip_header(message)
        begun = True
        if not row or bytes(row) == TRAILER:
            continue
        rows.append(row)
        nbytes += len(row)
        if len(rows) == BLOCK_ROWS or nbytes >= BLOCK_NBYTES:
            yield rows
            rows, nbytes = [], 0
    if rows:
        yield rows


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


def _sentence(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error)
