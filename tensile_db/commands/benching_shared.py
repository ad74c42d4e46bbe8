"""`tensile-db bench sharing`, `search` and `serving`: jobs and models that share a simulated device."""

from typing import Annotated

import typer

from tensile_db.commands import bench_options as options
from tensile_db.commands.bench_options import (
    FIVE,
    RESULTS,
    Cache,
    Device,
    Name,
    Networks,
    Out,
    SalusNetworks,
)
from tensile_db.errors import UnknownName


def sharing(
    device: Device = "sim:p100",
    networks: Networks = FIVE,
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """Many jobs by the worker's own decisions: ever less memory, a trace, fairness, a search."""
    from tensile_db.bench.machines import simulated
    from tensile_db.bench.queueing import runs as bench

    document = bench.run(
        options.captures(cache, device),
        simulated(device, "sharing"),
        networks=options.names(networks),
        tell=options.tell,
    )
    options.write(document, out_dir, name)


def search(
    device: Device = "sim:p100",
    networks: SalusNetworks = "resnet50_50,superres_128",
    trials: Annotated[int, typer.Option(min=1, help="Trials of each network.")] = 300,
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """300 trials that come at once, all to their end or losers stopped early, by each way of sharing."""
    from tensile_db.bench.machines import simulated
    from tensile_db.bench.queueing import searches as bench

    document = bench.run(
        options.captures(cache, device),
        simulated(device, "search"),
        networks=options.names(networks),
        trials=trials,
        tell=options.tell,
    )
    options.write(document, out_dir, name)


def serving(
    device: Device = "sim:p100",
    sharing: Annotated[str, typer.Option(help="How turns are given: auto, fair, fifo, pack, srtf.")] = "auto",
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """42 models asked for a row now and then, in ever less memory, with a training job beside or not."""
    from tensile_db.bench.machines import simulated
    from tensile_db.bench.queueing import serving as bench
    from tensile_db.scheduler.sharing.orders import SHARING_POLICIES

    if sharing not in SHARING_POLICIES:
        raise UnknownName("sharing policy", sharing, SHARING_POLICIES)
    document = bench.run(
        options.captures(cache, device), simulated(device, "serving"), sharing=sharing, tell=options.tell
    )
    options.write(document, out_dir, name)
