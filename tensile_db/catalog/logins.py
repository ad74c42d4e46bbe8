"""Roles that work and roles that train, made where they are missing.

Run again, nothing changes but that a given password is set.
"""

import psycopg
from psycopg import sql

from tensile_db.catalog.engine import ENCODING
from tensile_db.catalog.exclusive import wait_for_turn
from tensile_db.errors import Forbidden

#: How long to wait for another install, in seconds.
_PATIENCE_S = 60.0


def add_worker(dsn: str, role: str, *, password: str | None = None) -> bool:
    """Make a role a worker's login, and create it if it is missing.  Return whether it was created.

    dsn: of a superuser, in a database where tensile_db is installed.
    password: what the role has from now on; None leaves the one it has, or none.
    Raises Forbidden where the role is a superuser, which no worker may be; CatalogInUse where an install
    takes longer than a minute; psycopg.Error.
    """
    with psycopg.connect(dsn, client_encoding=ENCODING) as connection:
        created = _ensure(connection, role)
        found = connection.execute("SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = %s", [role])
        if found.fetchone() == (True,):
            raise Forbidden(
                f'the role "{role}" is a superuser, which no worker may be',
                hint="Name another: one that is not there yet is made.",
            )
        name = sql.Identifier(role)
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN").format(name))
        connection.execute(sql.SQL("GRANT tensile_worker TO {}").format(name))
        _set_password(connection, role, password)
    return created


def add_user(dsn: str, role: str, *, password: str | None = None) -> bool:
    """Let a role use tensile_db, and create it if it is missing.  Return whether it was created.

    dsn and password: as in `add_worker`.
    Raises CatalogInUse as there; psycopg.Error, also where the role has a superuser's powers.
    """
    with psycopg.connect(dsn, client_encoding=ENCODING) as connection:
        created = _ensure(connection, role)
        connection.execute("SELECT tensile.tensile_grant_usage(%s::name)", [role])
        _set_password(connection, role, password)
    return created


def _ensure(connection: psycopg.Connection, role: str) -> bool:
    """Create a role that logs in, unless there is one of that name.  Return whether it was created.

    Until the transaction's end nobody else does so in this database.
    """
    # Nothing of anybody's stands in for what a superuser calls.
    connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
    # Two that change one role at once would fail; those of two databases of one server still may.
    wait_for_turn(connection, patience_s=_PATIENCE_S)
    found = connection.execute("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s", [role])
    if found.fetchone() is not None:
        return False
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    return True


def _set_password(connection: psycopg.Connection, role: str, password: str | None) -> None:
    if password is None:
        return
    # Encrypted here: the statement may be logged.
    kept = connection.pgconn.encrypt_password(password.encode(), role.encode()).decode()
    statement = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(kept))
    connection.execute(statement)
