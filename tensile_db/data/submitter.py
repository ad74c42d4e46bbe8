"""A transaction in which the worker is a job's submitter, and nothing that runs in it can be anybody else.

The worker's login is a member of the submitter (tensile_grant_usage) and becomes it for the transaction, so
that the server's own checks, row-level security included, decide what is read.

Reading may run the submitter's code: functions in views, policies and index expressions.  Such code could
become anybody that the login may become (SET ROLE asks what the session's user is a member of, not the
current one), and read what is theirs.  The server forbids that within a function that is SECURITY DEFINER.
So the rows come out of one, of the submitter's own, that lasts as long as the transaction; a row at a time,
in about the time that the plain query takes (bench/reader.py).
"""

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from tensile_db.errors import Forbidden, InvalidRequest
from tensile_db.udf.session import SETTINGS_OF_VALUES
from tensile_db.udf.sql_text import as_literal

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

#: Sends what the function yields, in a transaction in which it was made.
COPY_ROWS = "COPY (SELECT pg_temp.tensile_rows()) TO STDOUT (FORMAT binary)"


class as_submitter:  # noqa: N801  # reads as a phrase: with as_submitter(...)
    """A transaction under one snapshot, as the role with this OID; it is rolled back in the end.

    settings: of the session that asked, by name; of others than SETTINGS_OF_VALUES none is heeded.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], submitter: int, settings: Mapping[str, str]
    ) -> None:
        self._connection = connection
        self._submitter = submitter
        # Whoever may submit may write there what they like.
        given = [(name, settings.get(name)) for name in SETTINGS_OF_VALUES]
        self._settings = [(name, value) for name, value in given if isinstance(value, str)]
        self._transaction = connection.transaction(force_rollback=True)

    def __enter__(self) -> None:
        row = self._connection.execute(
            "SELECT r.rolname, r.rolsuper AND NOT own.rolsuper FROM pg_catalog.pg_roles r,"
            " pg_catalog.pg_roles own WHERE r.oid = %s AND own.rolname = session_user",
            [self._submitter],
        ).fetchone()
        if row is None:
            raise Forbidden("the role that submitted the job does not exist any more")
        role, is_superuser = row
        if is_superuser:
            raise Forbidden(
                f'"{role}" is a superuser, and no worker becomes one',
                hint="Submit the job again after SET ROLE to an ordinary role.",
            )
        self._transaction.__enter__()
        try:
            for setting in _SETTINGS:
                self._connection.execute(setting)
            try:
                self._connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
            except psycopg.errors.InsufficientPrivilege:
                raise Forbidden(
                    f'the worker may not read as role "{role}"',
                    hint=f"Have an administrator call tensile_grant_usage({as_literal(role)}).",
                ) from None
            for name, value in self._settings:
                self._set(name, value)
        except BaseException as error:
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise

    def _set(self, name: str, value: str) -> None:
        try:
            self._connection.execute("SELECT pg_catalog.set_config(%s, %s, true)", [name, value])
        except psycopg.DataError as error:
            raise InvalidRequest(
                f"the session that asked had {name} set to {value}, which cannot be set now:"
                f" {error.diag.message_primary}",
                hint="Set another, and ask again.",
            ) from error

    def __exit__(self, *exception: Any) -> None:
        self._transaction.__exit__(*exception)


def make_rows_function(connection: psycopg.Connection[Any], select: sql.Composed) -> None:
    """Make the function that yields the rows of `select`, a bytea each; then nothing is written any more.

    Raises Forbidden where the submitter may not make temporary objects, or an event trigger forbids it.
    """
    query = select.as_string(connection)
    try:
        connection.execute(_FUNCTION.format(sql.Literal(query)))
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.RaiseException) as error:
        raise Forbidden(
            f"the rows cannot be read without a temporary function: {error.diag.message_primary}",
            hint="It takes GRANT TEMPORARY ON DATABASE ... TO the submitter; and event triggers, if there are"
            " any, see a CREATE FUNCTION in pg_temp by the submitter.",
        ) from error
    connection.execute("SET TRANSACTION READ ONLY")
