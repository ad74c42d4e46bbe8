"""`tensile-db up`, `down`, `status` and `psql`: the private cluster and its worker."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensile_db.commands.background import BackgroundWorker
from tensile_db.commands.console import err, out, program, step
from tensile_db.commands.files import parse_folder
from tensile_db.commands.sizes import parse_nbytes, parse_rate
from tensile_db.commands.starting import start_worker
from tensile_db.commands.worker_options import OPTIONS_FILE, WorkerOptions, recall
from tensile_db.errors import LocalServerFailed, NotInstalled
from tensile_db.worker.devices.limits import require_memory, require_threads

if TYPE_CHECKING:
    from rich.table import Table

NOT_RUNNING = 3

_PROGRESS = """
SELECT job_id AS job, usename AS owner, coalesce(architecture, model, command) AS network, phase, epoch,
       batches_done || '/' || batches_total AS batches, round(loss::numeric, 3) AS loss,
       tensile.format_nbytes(device_bytes_peak) AS peak
FROM tensile.progress ORDER BY job_id
"""

FOLDER_VARIABLE = "TENSILE_FOLDER"


def running_dsn(folder: Path, user: str | None = None) -> str:
    """Return how the private cluster is reached; user: the role, by default its superuser.

    Raises LocalServerFailed where it does not run.
    """
    from tensile_db.local import LocalCluster

    cluster = LocalCluster(folder)
    if not cluster.is_running():
        raise LocalServerFailed(
            "the private PostgreSQL is not running",
            hint="Start it with `tensile-db up`, or name a database: --dsn.",
        )
    return cluster.dsn() if user is None else cluster.dsn(user=user)


def _require_variable(context: typer.Context, folder: Path) -> Path:
    """Return the folder; raise InvalidRequest where it is the default for a variable that is empty."""
    # The option's parser never sees it, as if it were unset.
    source = context.get_parameter_source("folder")
    if source is not None and source.name == "DEFAULT" and os.environ.get(FOLDER_VARIABLE) == "":
        parse_folder("")
    return folder


Folder = Annotated[
    Path,
    typer.Option(
        envvar=FOLDER_VARIABLE,
        metavar="DIR",
        parser=parse_folder,
        callback=_require_variable,
        help="Where the private cluster lies.",
        show_default=True,
    ),
]
DEFAULT_FOLDER = Path(".tensile")
#: The demo's, in the cluster's folder.
PICTURE = "memory.png"

#: Of what stays in a cluster's folder.
_MOST_NAMED = 5


def up(
    folder: Folder = DEFAULT_FOLDER,
    device: Annotated[
        str | None, typer.Option(help="What the worker computes on: cpu, the default, or cuda:0.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Device memory for all jobs, e.g. 2GiB; default: what is free of a GPU's, half of the cpu's."
        ),
    ] = None,
    link: Annotated[
        str | None, typer.Option(help="Pace of the cpu device's link to its host, e.g. 12GB/s.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, callback=require_threads, help="Threads that one job computes with."),
    ] = None,
    *,
    worker: Annotated[bool, typer.Option(help="Start a worker, too.")] = True,
) -> None:
    """Start the private PostgreSQL and its worker; makes and installs what is missing.

    Without options of the worker's it is started as the last time, and one that runs is left alone.
    """
    options = WorkerOptions(
        device=device or WorkerOptions().device,
        memory_nbytes=None if memory is None else parse_nbytes(memory),
        link_bytes_per_s=None if link is None else parse_rate(link),
        threads=threads,
    )
    require_memory(options.device, options.memory_nbytes)
    if (device, memory, link, threads) == (None, None, None, None):
        options = recall(folder)
    bring_up(folder)
    if worker:
        start_worker(folder, options)
    show_what_next(folder)


def down(
    folder: Folder = DEFAULT_FOLDER,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Delete the cluster with its data, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")] = False,
) -> None:
    """Stop the worker and the private PostgreSQL.

    Jobs that were submitted go on from a checkpoint after `up`; what a session waits for ends with it.
    """
    from tensile_db.local import LocalCluster

    cluster, background = LocalCluster(folder), BackgroundWorker(folder)
    deletes = remove and cluster.is_made()
    if deletes and not yes:
        try:
            typer.confirm(f"Delete the cluster in {cluster.home} with all its tables and models?", abort=True)
        except typer.Abort:
            if not sys.stdin.isatty():
                err.print("Nothing was deleted. Where nobody can answer, add --yes.")
            raise
    if background.pid() is not None:
        with step("stopping the worker, which writes checkpoints"):
            background.stop()
    if cluster.is_running():
        with step("stopping PostgreSQL"):
            cluster.stop()
    elif not remove:
        out.print("Nothing runs.")
    if deletes:
        with step(f"deleting {cluster.home}"):
            cluster.remove()
            _remove_others(cluster.folder, background)
    elif remove:
        out.print(f"There is no cluster in {cluster.folder}; nothing was deleted.", soft_wrap=True)


def status(folder: Folder = DEFAULT_FOLDER) -> None:
    """Show what runs.  Exit status 3 where PostgreSQL or the worker does not."""
    from tensile_db.local import LocalCluster

    cluster, pid = LocalCluster(folder), BackgroundWorker(folder).pid()
    running = cluster.is_running()
    out.print(f"PostgreSQL  {'running' if running else 'stopped'}  {cluster.home}", soft_wrap=True)
    out.print(f"worker      {f'running  process {pid}' if pid else 'stopped'}", soft_wrap=True)
    if running:
        _show_jobs(cluster.dsn())
    if not running or pid is None:
        raise typer.Exit(NOT_RUNNING)


def psql(
    context: typer.Context,
    folder: Folder = DEFAULT_FOLDER,
    user: Annotated[
        str | None, typer.Option("--user", "-U", help="The role to connect as; default: demo.")
    ] = None,
) -> None:
    """Open psql on the private cluster as an ordinary user.

    Further arguments are psql's own: tensile-db psql -- -c 'SELECT 1'
    """
    from tensile_db.local import DEMO_USER, LocalCluster

    cluster = LocalCluster(folder)
    if not cluster.is_running():
        raise LocalServerFailed(
            "the private PostgreSQL is not running", hint="Start it with `tensile-db up`."
        )
    program = cluster.programs.program("psql")
    if not Path(program).exists():
        raise NotInstalled("psql is missing", hint="On Debian or Ubuntu: apt-get install postgresql-client.")
    # psql takes this process over: its terminal, its signals, its exit status.
    os.execv(program, [program, cluster.dsn(user=user or DEMO_USER), *context.args])  # noqa: S606 - no shell is wanted


def bring_up(folder: Path) -> None:
    """Start the cluster with tensile_db of this version in it; nothing is done twice."""
    from tensile_db.commands.installing import install_everything
    from tensile_db.local import LocalCluster

    cluster = LocalCluster(folder)
    doing = "looking after" if cluster.is_running() else "starting"
    with step(f"{doing} PostgreSQL {cluster.programs.version} in {folder}"):
        cluster.start()
    if cluster.is_elsewhere:
        err.print(
            f"    The server's user cannot reach {cluster.folder}, so the cluster lies in {cluster.home}.",
            soft_wrap=True,
        )
    # A session that waits for its training would keep it from being installed anew, and wait for the worker.
    install_everything(cluster.dsn(), if_changed=True)
    _grant_rights(cluster.dsn())


def show_what_next(folder: Path) -> None:
    """Tell how to connect, and how to stop."""
    from tensile_db.local import DEMO_USER, LocalCluster

    where = "" if folder == DEFAULT_FOLDER else f" --folder {shlex.quote(str(folder))}"
    out.print(f"connect   {program()} psql{where}", soft_wrap=True)
    out.print(f'     or   psql "{LocalCluster(folder).dsn(user=DEMO_USER)}"', soft_wrap=True)
    out.print(f"stop      {program()} down{where}       (submitted jobs go on after `up`)", soft_wrap=True)
    out.print(f"delete    {program()} down --remove{where}", soft_wrap=True)


def _remove_others(folder: Path, background: BackgroundWorker) -> None:
    """Delete what commands keep beside a cluster, and the folder where nothing else lies in it.

    Raises LocalServerFailed.
    """
    try:
        for path in (background.lock, background.log, folder / OPTIONS_FILE, folder / PICTURE):
            path.unlink(missing_ok=True)
        if background.cache.is_symlink():
            background.cache.unlink()
        elif background.cache.exists():
            shutil.rmtree(background.cache)
        others = sorted(path.name for path in folder.iterdir())
        if not others:
            folder.rmdir()
    except OSError as error:
        raise LocalServerFailed(
            f"cannot delete {error.filename}: {error.strerror}", hint="The cluster itself is deleted."
        ) from error
    if others:
        some = ", ".join(others[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
        out.print(f"{folder} stays, for it has other things in it: {some}", soft_wrap=True, markup=False)


def _grant_rights(dsn: str) -> None:
    """Make the worker's login a worker and the demo's role a user who can have tables of its own."""
    import psycopg
    from psycopg import sql

    from tensile_db.local import DEMO_USER, WORKER_LOGIN

    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT tensile.tensile_grant_worker(%s::name)", [WORKER_LOGIN])
        connection.execute("SELECT tensile.tensile_grant_usage(%s::name)", [DEMO_USER])
        connection.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(sql.Identifier(DEMO_USER)))


def _show_jobs(dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn) as connection:
        if connection.execute("SELECT to_regclass('tensile.progress')").fetchone() == (None,):
            return
        cursor = connection.execute(_PROGRESS)
        rows, columns = cursor.fetchall(), [column.name for column in cursor.description or ()]
    if rows:
        out.print(_table(columns, rows))


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> "Table":
    from rich.box import SIMPLE
    from rich.table import Column, Table

    table = Table(*(Column(name, no_wrap=True) for name in columns), box=SIMPLE)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    return table
