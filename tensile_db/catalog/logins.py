"""Roles that work and roles that train, made where they are missing.

Run again, nothing changes but that a given password is set.
"""

import time

import psycopg
from psycopg import sql

from tensile_db.catalog.engine import ENCODING
from tensile_db.errors import InvalidRequest

#: Roles are the server's: in any of its databases somebody else may be making or changing the same one.  Of
#: two that do so at once one fails ("tuple concurrently updated"), and may try again.
_AT_ONCE = (psycopg.errors.InternalError_, psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject)
_ATTEMPTS = 50
_PAUSE_S = 0.05
#: The server cuts longer names short.
_LONGEST_NBYTES = 63


def check_role(role: str, password: str | None) -> None:
    """Raise InvalidRequest where no role can have that name, or no password be that."""
    try:
        nbytes = len(role.encode())
        (password or "").encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"the name or the password of the role {role!a} is no UTF-8", hint="Give both in UTF-8."
        ) from None
    if not 0 < nbytes <= _LONGEST_NBYTES:
        raise InvalidRequest(
            f'a role cannot be called "{role}"', hint=f"Names of roles have 1 to {_LONGEST_NBYTES} bytes."
        )


def add_worker(dsn: str, role: str, *, password: str | None = None) -> bool:
    """Make a role a worker's login, and create it if it is missing.  Return whether it was created.

    dsn: of a superuser, in a database where tensile_db is installed.
    password: what the role has from now on; None leaves the one it has, or none.
    Raises InvalidRequest where there can be no such role; psycopg.Error, also where it must not work.
    """
    grant = sql.SQL("SELECT tensile.tensile_grant_worker({})").format(role)
    login = sql.SQL("ALTER ROLE {} LOGIN").format(sql.Identifier(role))
    return _add(dsn, role, password, grant, login)


def add_user(dsn: str, role: str, *, password: str | None = None) -> bool:
    """Let a role use tensile_db, and create it if it is missing.  Return whether it was created.

    dsn, password and errors: as in `add_worker`.
    """
    return _add(dsn, role, password, sql.SQL("SELECT tensile.tensile_grant_usage({})").format(role))


def _add(dsn: str, role: str, password: str | None, *statements: sql.Composed) -> bool:
    """Create a role unless it is there, run the statements, and set a password.

    All or nothing.  Return whether the role was created.
    """
    check_role(role, password)
    for attempt in range(_ATTEMPTS):
        try:
            with psycopg.connect(dsn, client_encoding=ENCODING) as connection:
                # Nothing of anybody's stands in for what a superuser calls.
                connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
                created = _ensure(connection, role)
                for statement in statements:
                    connection.execute(statement)
                if password is not None:
                    _set_password(connection, role, password)
            break
        except _AT_ONCE:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_S)
    return created


def _ensure(connection: psycopg.Connection, role: str) -> bool:
    """Create a role that logs in, unless there is one of that name.  Return whether it was created."""
    found = connection.execute("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s", [role])
    if found.fetchone() is not None:
        return False
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    return True


def _set_password(connection: psycopg.Connection, role: str, password: str) -> None:
    # Encrypted here: the statement may be logged.
    kept = connection.pgconn.encrypt_password(password.encode(), role.encode()).decode()
    statement = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(kept))
    connection.execute(statement)
