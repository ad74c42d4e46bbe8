"""`tensile-db worker`: runs the jobs of a database on one device, until it is told to stop."""

from pathlib import Path
from typing import Annotated

import typer

from tensile_db.commands.files import parse_folder
from tensile_db.commands.sizes import parse_nbytes, parse_rate
from tensile_db.errors import UnknownName
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.worker.devices.limits import require_host_memory, require_memory, require_threads
from tensile_db.worker.devices.names import require_device_name


def worker(
    dsn: Annotated[
        str, typer.Option(help="The database; the role a member of tensile_worker and no superuser.")
    ],
    device: Annotated[str, typer.Option(help="What to compute on: cpu or cuda:0.")] = "cpu",
    memory: Annotated[
        str | None,
        typer.Option(
            help="Device memory for all jobs, e.g. 2GiB; default: what is free of a GPU's, half of the cpu's."
        ),
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of the host for what is swapped out of a GPU; default: half of the host's."
        ),
    ] = None,
    link: Annotated[
        str | None, typer.Option(help="Pace of the cpu device's link to its host, e.g. 12GB/s.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, callback=require_threads, help="Threads that one job computes with."),
    ] = None,
    sharing: Annotated[
        str, typer.Option(help="How jobs share the device: auto, fair, fifo, pack or srtf.")
    ] = "auto",
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=parse_folder,
            help="Where rows are kept while a job runs; default: a temporary folder.",
        ),
    ] = None,
    serving_batch: Annotated[
        int, typer.Option(min=1, help="Rows of one model predicted together, of those asked for one by one.")
    ] = 8,
    serving_idle: Annotated[
        float, typer.Option(min=0, help="Seconds until a model that nobody asks for is served no more.")
    ] = 300.0,
    *,
    replay: Annotated[
        bool, typer.Option(help="On a GPU, replay a training's settled iterations as CUDA graphs.")
    ] = True,
    calibrate: Annotated[
        bool, typer.Option(help="Measure how long ops take: cores at the start, ops once while idle.")
    ] = True,
) -> None:
    """Run a worker in the foreground; a supervisor starts it again should it crash.

    SIGTERM and Ctrl-C make every job write a checkpoint and go back to the queue.
    """
    require_device_name(device)
    if sharing not in SHARING_POLICIES:
        raise UnknownName("sharing policy", sharing, SHARING_POLICIES)
    memory_nbytes = None if memory is None else parse_nbytes(memory)
    require_memory(device, memory_nbytes)
    host_memory_nbytes = None if host_memory is None else parse_nbytes(host_memory)
    require_host_memory(host_memory_nbytes)
    link_bytes_per_s = None if link is None else parse_rate(link)

    import logging

    from tensile_db.worker.config import WorkerConfig
    from tensile_db.worker.supervisor import run_supervised

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s supervisor %(message)s")
    run_supervised(
        WorkerConfig(
            dsn=dsn,
            device=device,
            memory_nbytes=memory_nbytes,
            host_memory_nbytes=host_memory_nbytes,
            link_bytes_per_s=link_bytes_per_s,
            replay=replay,
            threads=threads,
            sharing=sharing,
            cache_dir=cache,
            serving_batch=serving_batch,
            serving_idle_s=serving_idle,
            calibrate=calibrate,
        )
    )
