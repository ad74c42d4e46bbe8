"""psql as a user would run it: a session each, its output line by line as it comes."""

import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensile_db.errors import KernelFailed

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """An SQL statement that a session runs."""

    #: Names the session in what is told of it.
    name: str
    sql: str


class Psql:
    """Runs statements in psql sessions of one role."""

    def __init__(self, program: str, dsn: str) -> None:
        """program: psql's path; dsn: where to connect, and as whom."""
        # -X: a user's psqlrc is not part of the demo.
        self._command = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-P", "pager=off", "-P", "footer=off"]
        self._dsn = dsn

    def run(self, statement: Statement, tell: Tell, *, expanded: bool = False) -> None:
        """Run a statement in a session of its own and tell each line that it prints, NOTICEs too.

        Raises KernelFailed with psql's error where it fails.
        """
        arguments = [*self._command, *(["-x"] if expanded else []), "-d", self._dsn, "-c", statement.sql]
        # psql stops when the demo is interrupted: both are in the terminal's foreground group.
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        said = []
        with process:
            for line in process.stdout:
                said.append(line)
                if text := line.rstrip("\n"):
                    tell(text)
        if process.returncode != 0:
            complaints = [line.removeprefix("ERROR:").strip() for line in said if line.startswith("ERROR:")]
            raise KernelFailed(
                f"{statement.name} failed: {complaints[0] if complaints else ''.join(said).strip()}",
                hint="The worker's log, worker.log beside the cluster, may say more.",
            )

    def run_together(self, statements: Sequence[Statement], tell: Callable[[str, str], None]) -> None:
        """Run each statement in a session of its own, all at once; tells (name, line).

        Raises KernelFailed for the first that failed, after all have ended.
        """
        failures: list[KernelFailed] = []

        def session(statement: Statement) -> None:
            try:
                self.run(statement, lambda line: tell(statement.name, line), expanded=True)
            except KernelFailed as error:
                failures.append(error)

        threads = [threading.Thread(target=session, args=(statement,)) for statement in statements]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
