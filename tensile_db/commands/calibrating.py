"""`tensile-db calibrate`: measures how long a device's ops take, for the plans of jobs that never ran."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from tensile_db.commands.console import err, out, step
from tensile_db.commands.private import DEFAULT_FOLDER, Folder, running_dsn
from tensile_db.commands.sizes import parse_nbytes
from tensile_db.errors import InvalidRequest
from tensile_db.worker.devices.limits import require_memory, require_threads
from tensile_db.worker.devices.names import require_device_name

if TYPE_CHECKING:
    from tensile_db.latency.training import Learned
    from tensile_db.worker.latencies.calibrating import Calibration, Progress

#: A week.
_LONGEST_S = 7 * 24 * 3600


def calibrate(
    folder: Folder = DEFAULT_FOLDER,
    dsn: Annotated[
        str | None,
        typer.Option(
            help="Where to keep what is learned, as a worker's login; default: the private cluster."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="What to measure: cpu or cuda:0.")] = "cpu",
    seconds: Annotated[
        float, typer.Option(min=1, max=_LONGEST_S, help="How long to measure; learning takes some more.")
    ] = 120.0,
    memory: Annotated[
        str | None, typer.Option(help="Device memory to measure within; default: half of what is free.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, callback=require_threads, help="Threads that a job computes with, as its worker is given."
        ),
    ] = None,
    *,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what was measured of this hardware before.")
    ] = False,
) -> None:
    """Measure ops of many kinds and sizes, and learn to predict their latencies.

    Calibrating again adds to what is known.  Best on a quiet machine: what runs beside is measured, too.
    """
    require_device_name(device)
    memory_nbytes = None if memory is None else parse_nbytes(memory)
    require_memory(device, memory_nbytes)
    from sqlalchemy import Engine

    from tensile_db.catalog import latency_models
    from tensile_db.catalog.engine import make_engine
    from tensile_db.local import WORKER_LOGIN
    from tensile_db.worker.config import WorkerConfig
    from tensile_db.worker.devices.opening import open_device
    from tensile_db.worker.latencies.calibrating import Calibration
    from tensile_db.worker.latencies.hardware import hardware_name

    config = WorkerConfig(
        dsn=dsn or running_dsn(folder, WORKER_LOGIN),
        device=device,
        memory_nbytes=memory_nbytes,
        threads=threads,
    )
    engine: Engine = make_engine(config.dsn, application_name="tensile_db calibrate", pool_size=1)
    try:
        with engine.connect() as conn:
            latency_models.try_writing(conn)
        with step("measuring the device"):
            opened = open_device(config)
            hardware = hardware_name(opened.torch_device, threads=config.kernel_threads)
            opened.close()
        out.print(f"hardware  {hardware}", soft_wrap=True)
        calibration, learned = _run(
            lambda on_progress: Calibration(
                engine,
                config,
                hardware=hardware,
                spec=opened.spec,
                seconds=seconds,
                fresh=fresh,
                on_progress=on_progress,
            )
        )
    finally:
        engine.dispose()
    if not calibration.samples:
        known = "what is known was measured before" if learned else "nothing is known"
        raise InvalidRequest(
            f"no op was measured within {seconds:g} s; {known}", hint="Give it more --seconds."
        )
    _show(learned)


def _run(
    make: "Callable[[Callable[[Progress], object]], Calibration]",
) -> "tuple[Calibration, Mapping[str, Learned]]":
    """Calibrate with a bar on the terminal; Ctrl-C keeps what was measured."""
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=err,
    ) as bars:
        tasks: dict[str, TaskID] = {}

        def show(progress: "Progress") -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(progress.phase, total=1.0, detail="")
            bars.update(tasks[progress.phase], completed=progress.share, detail=progress.detail)

        calibration = make(show)
        learned = calibration.run()
    assert learned is not None, "nobody stops it"
    return calibration, learned


def _show(learned: "Mapping[str, Learned]") -> None:
    from rich.table import Table

    table = Table("kind of op", "samples", "R²", "R² of logarithms", "median relative error")
    for kind, one in sorted(learned.items()):
        if one.errors is None:
            table.add_row(kind, str(one.sample_count), "", "", "roofline")
        else:
            table.add_row(
                kind,
                str(one.sample_count),
                _decimal(one.errors.r_squared),
                _decimal(one.errors.r_squared_log),
                f"{one.errors.median_relative_error:.0%}",
            )
    out.print(table)


def _decimal(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"
