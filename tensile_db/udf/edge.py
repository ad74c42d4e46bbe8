"""Where SQL enters: JSON in, JSON out, and errors as values with SQLSTATE, message and hint.

Runs inside PostgreSQL.  tensile.call raises what comes back under "error": an exception that left PL/Python
would carry its class and a traceback.  A defect of ours does leave, traceback and all.
"""

import json
from typing import Any

from tensile_db.errors import InvalidRequest, TensileError
from tensile_db.udf.operations import carry_out
from tensile_db.udf.session import Session

_READ_ONLY = "25006"


def answer(plpy: Any, operation: str, arguments: str) -> str:
    """Carry out an operation; arguments and answer are JSON objects.

    The answer holds "result", or "error" with sqlstate, message and hint.
    """
    try:
        result = carry_out(Session(plpy), operation, _decoded(arguments))
    except TensileError as error:
        return _failure(error.sqlstate, error.message, error.hint)
    except plpy.SPIError as error:
        # spidata: sqlerrcode, detail, hint, query, position, ...
        detail, hint = error.spidata[1:3] if error.spidata else (None, None)
        if error.sqlstate == _READ_ONLY:
            return _failure(error.sqlstate, *_read_only(plpy))
        return _failure(error.sqlstate, str(error), hint or detail or "")
    return json.dumps({"result": result})


def _read_only(plpy: Any) -> tuple[str, str]:
    """Return sentence and hint where nothing may be written; PostgreSQL's name the statement inside."""
    (row,) = plpy.execute("SELECT pg_catalog.pg_is_in_recovery() AS is_standby")
    if row["is_standby"]:
        return (
            "this server is a standby, on which nothing can be written",
            "Connect to the primary; target_session_attrs=read-write finds it among several hosts.",
        )
    return (
        "the transaction is read-only",
        "SET TRANSACTION READ WRITE, as its first statement; default_transaction_read_only may be on.",
    )


def _decoded(arguments: str) -> dict[str, Any]:
    """Return the arguments.  Raises InvalidRequest where JSON of SQL's is beyond Python's."""
    try:
        decoded: dict[str, Any] = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"an argument cannot be read: {error}",
            hint="Numbers have thousands of digits at most, and lists are not nested a thousand times.",
        ) from None
    return decoded


def _failure(sqlstate: str, message: str, hint: str) -> str:
    return json.dumps({"error": {"sqlstate": sqlstate, "message": message, "hint": hint}})
