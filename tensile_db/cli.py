"""The command `tensile-db`.

Exit status: 0 done; 1 it failed, and why is on standard error; 2 the command line is wrong; 3 `status` found
something stopped, or `doctor` something missing; 130 interrupted.

Commands import what they need when they run: PyTorch alone takes seconds.
"""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tensile_db.commands import (
    benching,
    calibrating,
    checking,
    doctor,
    installing,
    planning,
    private,
    touring,
    weights,
    working,
)
from tensile_db.commands.console import complain, complain_of, err
from tensile_db.errors import TensileError
from tensile_db.worker.openmp import wait_briefly

FAILED = 1


class ErrorsWithHints(TyperGroup):
    """The edge at which errors become a sentence, a hint and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.  The context is click's, which newer versions of typer have a copy of."""
        try:
            return super().invoke(ctx)
        except TensileError as error:
            complain_of(error)
        except KeyboardInterrupt:
            err.print("interrupted")
            raise
        except Exception as error:
            # Looked up, not imported: a command that did not use the database cannot have failed in it.
            psycopg = sys.modules.get("psycopg")
            # SQLAlchemy keeps the driver's error in `orig`.
            cause = getattr(error, "orig", None) or error
            if psycopg is None or not isinstance(cause, psycopg.Error):
                raise
            complain(cause.diag.message_primary or str(cause).strip(), cause.diag.message_hint or "")
        raise typer.Exit(FAILED)


app = typer.Typer(
    name="tensile-db",
    cls=ErrorsWithHints,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tensile-db {version('tensile_db')}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Deep learning inside PostgreSQL, many jobs on one device under one memory plan."""
    # What is measured by a command is what a worker would measure.
    wait_briefly()


app.command()(private.up)
app.command()(private.down)
app.command()(private.status)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(private.psql)
app.command()(installing.install)
app.command()(installing.extension)
app.command()(working.worker)
app.command()(planning.plan)
app.command()(checking.check)
app.command()(calibrating.calibrate)
app.command()(weights.import_weights)
app.command()(weights.export_weights)
app.add_typer(benching.app, name="bench")
app.command()(doctor.doctor)
app.command()(touring.demo)

if __name__ == "__main__":
    app()
