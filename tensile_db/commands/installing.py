"""`tensile-db install`: puts tensile_db into a database, of a server of ours or of anybody's."""

from typing import Annotated

import typer

from tensile_db.commands.console import out, step


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
) -> None:
    """Install tensile_db into a database, or bring it to this version; needs none of the server's files."""
    install_everything(dsn, loopback=loopback)
    out.print("Let a role use it:   SELECT tensile_grant_usage('role');")
    out.print("A worker's login:    CREATE ROLE name LOGIN PASSWORD '...'; GRANT tensile_worker TO name;")
    out.print("Then start a worker: tensile-db worker --dsn ... --device cpu --memory 2GiB")


def install_everything(dsn: str, *, loopback: str | None = None, if_changed: bool = False) -> None:
    """Install the catalog, the functions and the names of all architectures known here.

    if_changed: only where the last install was of something else.
    """
    with step("looking up the architectures that can be trained"):
        from tensile_db.worker.jobs.job_thread import known_architectures

        architectures = known_architectures()
    with step("installing tensile_db into the database"):
        from tensile_db.catalog.install import install as install_into

        install_into(dsn, architectures=architectures, loopback=loopback, if_changed=if_changed)
