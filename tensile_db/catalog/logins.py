"""The logins of workers and of users, made where they are missing.

Run again, nothing changes but a password that is given.
"""

import psycopg
from psycopg import sql

from tensile_db.catalog.engine import ENCODING
from tensile_db.catalog.exclusive import wait_for_turn
from tensile_db.errors import Forbidden

#: How long another install may take.
_PATIENCE_S = 60.0


def add_worker(dsn: str, role: str, *, password: str | None = None) -> bool:
    """Let a role log in as a worker, and tell whether it was made for that.

    dsn: of a superuser, in a database where tensile_db is installed.
    password: what the role has from now on; None leaves the one it has, or none.
    Raises Forbidden where the role is a superuser, which no worker may be; CatalogInUse, psycopg.Error.
    """
    with psycopg.connect(dsn, client_encoding=ENCODING) as connection:
        made = _log_in(connection, role, password)
        row = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", [role]).fetchone()
        if row == (True,):
            raise Forbidden(
                f'the role "{role}" is a superuser, which no worker may be',
                hint="Name another: one that is not there yet is made.",
            )
        connection.execute(sql.SQL("GRANT tensile_worker TO {}").format(sql.Identifier(role)))
    return made


def add_user(dsn: str, role: str, *, password: str | None = None) -> bool:
    """Let a role use tensile_db, as tensile_grant_usage does, and tell whether it was made for that.

    dsn and password: as in `add_worker`.  Raises CatalogInUse; psycopg.Error, also where the role has a
    superuser's powers.
    """
    with psycopg.connect(dsn, client_encoding=ENCODING) as connection:
        made = _log_in(connection, role, password)
        connection.execute("SELECT tensile.tensile_grant_usage(%s::name)", [role])
    return made


def _log_in(connection: psycopg.Connection, role: str, password: str | None) -> bool:
    """Make a role that logs in, unless it is there; give it the password.  Tell whether it was made."""
    name = sql.Identifier(role)
    # Two that change one role in the same moment would fail.
    wait_for_turn(connection, patience_s=_PATIENCE_S)
    try:
        with connection.transaction():
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        made = True
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        made = False
    if password is not None:
        # As the server is to keep it: its log, which may have the statement, has no use for more.
        kept = connection.pgconn.encrypt_password(password.encode(), role.encode()).decode()
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(kept)))
    return made
