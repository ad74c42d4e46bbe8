"""`tensile-db install` and `extension`: tensile_db in a database, of a server of ours or of anybody's."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tensile_db.commands.console import err, out, step
from tensile_db.commands.files import parse_folder, writing
from tensile_db.errors import InvalidRequest, NotAtHome, NotInstalled

#: Variables of the environment with the passwords.
_WORKERS_VARIABLE = "TENSILE_WORKER_PASSWORD"
_USERS_VARIABLE = "TENSILE_USER_PASSWORD"


def _roles(may: str, variable: str) -> Any:
    """Return an option that names roles; may: what they may do then; variable: has their password."""
    return typer.Option(
        metavar="ROLE",
        help=f"Let this role {may}, and make it if it is missing; may be repeated."
        f" Its password becomes that in {variable}, if set.",
    )


def install(
    dsn: Annotated[
        str, typer.Argument(help="The database, as a libpq connection string or URI; the role a superuser.")
    ],
    loopback: Annotated[
        str | None,
        typer.Option(
            help="How the server reaches itself, a connection string, where its local socket asks for more"
            " than being the installing role."
        ),
    ] = None,
    worker: Annotated[list[str] | None, _roles("log in as a worker", _WORKERS_VARIABLE)] = None,
    user: Annotated[list[str] | None, _roles("use tensile_db", _USERS_VARIABLE)] = None,
    *,
    if_changed: Annotated[
        bool, typer.Option("--if-changed", help="Leave what the last install of the same has made as it is.")
    ] = False,
) -> None:
    """Install tensile_db into a database, or bring it to this version; needs none of the server's files.

    Passwords come from the environment, one for all workers and one for all users. Where a variable is unset
    or empty, roles keep the password that they have.
    """
    workers, users = worker or [], user or []
    from tensile_db.catalog.logins import add_user, add_worker, check_role

    for roles, variable in ((workers, _WORKERS_VARIABLE), (users, _USERS_VARIABLE)):
        for role in roles:
            check_role(role, os.environ.get(variable))
    if both := sorted(set(workers) & set(users)):
        raise InvalidRequest(
            f'the role "{both[0]}" cannot both work and train', hint="Give workers a login of their own."
        )
    install_everything(dsn, loopback=loopback, if_changed=if_changed)
    _add(dsn, workers, add_worker, _WORKERS_VARIABLE, "may log in as a worker")
    _add(dsn, users, add_user, _USERS_VARIABLE, "may use tensile_db")
    _tell_what_comes_next(users=bool(users), workers=bool(workers))


def _add(dsn: str, roles: Iterable[str], add: Callable[..., bool], variable: str, what: str) -> None:
    """Add roles with the password in a variable, and say what each may do now."""
    password = os.environ.get(variable) or None
    for role in roles:
        created = add(dsn, role, password=password)
        if created:
            without = f", without a password: {variable} is not set" if password is None else ""
            out.print(f"created role {role}{without}", soft_wrap=True, markup=False, highlight=False)
        out.print(f"role {role} {what}", soft_wrap=True, markup=False, highlight=False)


def extension(
    folder: Annotated[
        Path | None,
        typer.Argument(
            parser=parse_folder,
            help="Where to write the files; else where this machine's PostgreSQL looks for them, the one that"
            " PG_CONFIG names or the newest.",
        ),
    ] = None,
) -> None:
    """Build the files of CREATE EXTENSION tensile_db, where this machine's server looks for them."""
    to = _folder_of_the_server() if folder is None else folder
    architectures = _known_architectures()
    with step("building the extension"), writing(to):
        from tensile_db.catalog.extension import build

        for path in build(to, architectures=architectures):
            out.print(str(path), soft_wrap=True)
    if folder is None:
        out.print("In a database:       CREATE EXTENSION tensile_db CASCADE;")
        _tell_what_comes_next()
    else:
        out.print("The server looks in: $(pg_config --sharedir)/extension")


def install_everything(dsn: str, *, loopback: str | None = None, if_changed: bool = False) -> None:
    """Install the catalog, the functions and the names of all architectures known here.

    if_changed: only where the last install was of something else.
    """
    architectures = _known_architectures()
    with step("installing tensile_db into the database"):
        from tensile_db.catalog.install import install as install_into

        install_into(dsn, architectures=architectures, loopback=loopback, if_changed=if_changed)
    _tell_where_it_comes_from(dsn)


def _tell_where_it_comes_from(dsn: str) -> None:
    """Say what a catalog needs that a dump has brought."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        if connection.execute("SELECT tensile.is_at_home()").fetchone() != (True,):
            error = NotAtHome()
            err.print(f"    {error.message}\n    {error.hint}", soft_wrap=True, markup=False, highlight=False)


def _known_architectures() -> list[tuple[str, str, str]]:
    with step("looking up the architectures that can be trained"):
        from tensile_db.worker.jobs.job_thread import known_architectures

        return list(known_architectures())


def _folder_of_the_server() -> Path:
    """Return where the server of this machine looks for extensions.  Raises NotInstalled, InvalidRequest."""
    from tensile_db.local_postgres import find_postgres, shared_folders

    programs = find_postgres()
    folder = shared_folders(programs.bindir, programs.version)[0] / "extension"
    if not folder.is_dir():
        raise NotInstalled(
            f"PostgreSQL {programs.version} of {programs.bindir} has no folder of extensions: {folder}",
            hint="Let PG_CONFIG name the pg_config of a PostgreSQL server.",
        )
    if not os.access(folder, os.W_OK):
        raise InvalidRequest(
            f"cannot write to {folder}, where PostgreSQL {programs.version} looks for extensions",
            hint="Run it as that folder's owner, as a rule root; or name another folder, and copy the files.",
        )
    return folder


def _tell_what_comes_next(*, users: bool = False, workers: bool = False) -> None:
    """Tell what is still to be done; users, workers: that there are such roles already."""
    if not users:
        out.print("Let a role use it:   SELECT tensile_grant_usage('role');")
    if not workers:
        out.print(
            "A worker's login:    CREATE ROLE name LOGIN PASSWORD '...'; SELECT tensile_grant_worker('name');"
        )
    out.print("Then start a worker: tensile-db worker --dsn ... --device cpu --memory 2GiB")
