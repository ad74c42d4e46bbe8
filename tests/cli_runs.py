"""The command `tensile-db`, run in the process of the tests."""

from typer.testing import CliRunner

from tensile_db.cli import app


def run(*arguments):
    """Run the command with these arguments; return typer's result."""
    return CliRunner().invoke(app, arguments)


def refusal(*arguments):
    """Return what the command says after "ERROR:" when it refuses: a sentence, no traceback, no results."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert "Traceback" not in result.output
    return result.stderr.partition("ERROR:  ")[2]
