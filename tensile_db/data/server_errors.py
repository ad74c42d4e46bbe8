"""What an error of the server's means to whoever reads rows: it is away, or the source is at fault.

Runs in the worker.
"""

from collections.abc import Sequence

import psycopg

from tensile_db.data.columns import Column
from tensile_db.errors import BadData

#: Of functions and relations that are not there.
_UNDEFINED = frozenset({"42883", "42P01"})
#: What raises the errors of PL/pgSQL's RAISE, whatever their SQLSTATE.
_RAISES = "exec_stmt_raise"
#: A function of a view that works in the submitter's session need not work here.
_BY_NAME = (
    "Sources are read with the search_path pg_catalog: if it is there, have the view's functions name its"
    " schema, or give them a path by ALTER FUNCTION ... SET search_path."
)

#: SQLSTATE -> what to do where it is another thing than to look at the source.
_HINTS = {
    "25006": "Sources are read in a read-only transaction: leave out what writes, as nextval() does.",
    "40001": "Other transactions were in its way: submit the job again.",
    "40P01": "Other transactions were in its way: submit the job again.",
    "55P03": "Another transaction has locked what is read: submit the job again when it has ended.",
}


_OUT_OF_RANGE = "22003"
#: What makes double precision of a numeric's digits in PostgreSQL 14 to 18.
_READS_FLOAT8 = frozenset({"float8in_internal", "float8in_internal_opt_error"})


def is_connection_loss(error: BaseException | None) -> bool:
    """Tell a lost connection, or a server that is starting or stopping, from a refused statement."""
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is None:
        # The client's own view: no connection, or none any more.
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    # 08: connection exceptions; 57P0x: the server is going, or not there yet; 53300: too many clients; 25P0x:
    # a session was ended whose transaction took too long.
    return sqlstate in ("57P01", "57P02", "57P03", "53300", "25P03", "25P04") or sqlstate.startswith("08")


def unsent_rows(error: psycopg.Error, numerics: Sequence[Column] = ()) -> BadData | None:
    """Return what to tell of rows that the server refused to send; None where it did not refuse them.

    numerics: columns that are read as double precision, or arrays of it, which is not their own type.
    A view's functions may raise whatever their author has thought of, internal errors among them.
    """
    # By its SQLSTATE an error of a view, or of a foreign table whose own server is away, may be a lost
    # connection, too.
    ended = error.sqlstate is None and not isinstance(error, psycopg.DataError)
    if ended or error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
        return None
    if numerics and error.sqlstate == _OUT_OF_RANGE and error.diag.source_function in _READS_FLOAT8:
        # What it says has all of the number's digits, and a SELECT of the column alone would not fail.
        casts = ", ".join(f"{column.quoted}::{column.cast}" for column in numerics)
        return BadData(
            "the server could not send the rows: a number is out of range for type double precision",
            hint=f"As such numeric columns are read: SELECT {casts} from the source to see where it fails,"
            " and leave such rows out by a view.",
        )
    return BadData(
        f"the server could not send the rows: {sentence(error)}",
        hint=_hint(error),
    )


def _hint(error: psycopg.Error) -> str:
    if error.sqlstate in _UNDEFINED and error.diag.source_function != _RAISES:
        return _BY_NAME
    own = error.diag.message_hint
    if own and error.diag.source_function == _RAISES:
        # Whoever raised it knows better.
        return own
    return _HINTS.get(error.sqlstate or "") or own or "SELECT from the source to see where it fails."


def sentence(error: psycopg.Error) -> str:
    """Return the message alone, without its context and place."""
    return error.diag.message_primary or str(error)
