"""`tensile-db bench`: the papers' tables and figures, on simulated machines or this one's own devices."""

from pathlib import Path
from typing import Annotated

import typer

from tensile_db.commands import bench_options as options
from tensile_db.commands.bench_options import (
    FIVE,
    RESULTS,
    BatchSize,
    Budgets,
    Cache,
    Device,
    Name,
    NameWithDefault,
    Networks,
    Optimizer,
    Out,
    Policies,
    Seed,
)
from tensile_db.commands.benching_results import docs, join
from tensile_db.commands.benching_shared import search, serving, sharing
from tensile_db.errors import InvalidRequest

app = typer.Typer(
    no_args_is_help=True,
    help=f"{__doc__} Results are written when all of them are there: an interrupted run leaves none.",
)
for _command in (sharing, search, serving, join, docs):
    app.command()(_command)


@app.command()
def single(
    device: Device = "sim:a6000",
    networks: Networks = FIVE,
    policies: Policies = "",
    batch_size: BatchSize = 16,
    optimizer: Optimizer = "adam",
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
    budgets: Budgets = "",
    *,
    bound: Annotated[bool, typer.Option(help="Also solve for the lower bound on time.")] = True,
) -> None:
    """One job at a time: MSR, EOR and CBR of every policy over budgets, beside the lower bound.

    On cpu and cuda:N plans are made from measured latencies, and each policy's best one really runs.
    """
    from tensile_db.bench import single as bench
    from tensile_db.bench.machines import on

    with on(device) as (spec, here):
        document = bench.run(
            options.captures(cache, device),
            spec,
            networks=options.names(networks),
            policies=options.policies(policies),
            batch=batch_size,
            optimizer=optimizer,
            shares=[percent / 100 for percent in options.percents(budgets)] or bench.SHARES,
            with_bound=bound,
            here=here,
            tell=options.tell,
        )
    options.write(document, out_dir, name)


@app.command()
def phases(
    device: Device = "sim:a6000",
    networks: Networks = FIVE,
    policies: Policies = "tensile,auto",
    batch_size: BatchSize = 16,
    optimizer: Optimizer = "adam",
    seed: Seed = 1,
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """The cold start and what follows, where latencies are not those predicted."""
    _phases(device, networks, policies, batch_size, optimizer, seed, out_dir, name, cache, only_first=False)


@app.command("first-iteration")
def first_iteration(
    device: Device = "sim:a6000",
    networks: Networks = FIVE,
    policies: Policies = "tensile,auto",
    batch_size: BatchSize = 16,
    optimizer: Optimizer = "adam",
    seed: Seed = 1,
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """The first iteration, planned from predictions, beside Capuchin's passive mode."""
    _phases(device, networks, policies, batch_size, optimizer, seed, out_dir, name, cache, only_first=True)


def _phases(
    device: str,
    networks: str,
    policies: str,
    batch_size: int,
    optimizer: str,
    seed: int,
    out_dir: Path,
    name: str | None,
    cache: Path | None,
    *,
    only_first: bool,
) -> None:
    from tensile_db.bench import phases as bench
    from tensile_db.bench.machines import on

    with on(device) as (spec, here):
        document = bench.run(
            options.captures(cache, device),
            spec,
            networks=options.names(networks),
            policies=options.policies(policies),
            batch=batch_size,
            optimizer=optimizer,
            seed=seed,
            only_first=only_first,
            here=here,
            tell=options.tell,
        )
    options.write(document, out_dir, name)


@app.command()
def scale(
    device: Device = "sim:a6000",
    networks: Networks = FIVE,
    policies: Policies = "",
    batch_size: BatchSize = 16,
    optimizer: Optimizer = "adam",
    jobs: Annotated[str, typer.Option(help="Numbers of equal jobs.")] = "1,2,3,4,8",
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """One to four equal jobs at once, then eight."""
    from tensile_db.bench import scale as bench
    from tensile_db.bench.machines import spec_of

    document = bench.run(
        options.captures(cache, device),
        spec_of(device),
        networks=options.names(networks),
        policies=options.policies(policies),
        batch=batch_size,
        optimizer=optimizer,
        counts=options.numbers(jobs, "--jobs"),
        tell=options.tell,
    )
    options.write(document, out_dir, name)


@app.command()
def mixed(
    device: Device = "sim:a6000",
    networks: Networks = FIVE,
    policies: Policies = "",
    batch_size: BatchSize = 16,
    optimizer: Optimizer = "adam",
    seeds: Annotated[str, typer.Option(help="One order of arrival each.")] = "1,2,3",
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """Different networks, launched one by one in random order."""
    from tensile_db.bench import mixed as bench
    from tensile_db.bench.machines import spec_of

    document = bench.run(
        options.captures(cache, device),
        spec_of(device),
        networks=options.names(networks),
        policies=options.policies(policies),
        batch=batch_size,
        optimizer=optimizer,
        seeds=options.numbers(seeds, "--seeds"),
        tell=options.tell,
    )
    options.write(document, out_dir, name)


@app.command()
def batch(
    device: Device = "sim:a6000",
    networks: Networks = FIVE,
    policies: Policies = "",
    batch_sizes: Annotated[str, typer.Option(help="Rows an iteration, of each run.")] = "4,8,16,32,64",
    optimizer: Optimizer = "adam",
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
    *,
    within_memory: Annotated[
        bool, typer.Option("--within-memory", help="Samples a second within the device's memory instead.")
    ] = False,
) -> None:
    """Batch sizes: MSR, EOR and CBR, or the speed within the device's memory."""
    from tensile_db.bench import batch as bench
    from tensile_db.bench.machines import spec_of

    document = bench.run(
        options.captures(cache, device),
        spec_of(device),
        networks=options.names(networks),
        policies=options.policies(policies),
        batches=options.numbers(batch_sizes, "--batch-sizes"),
        optimizer=optimizer,
        within_memory=within_memory,
        tell=options.tell,
    )
    options.write(document, out_dir, name)


@app.command()
def capacity(
    device: Device = "sim:titanrtx",
    networks: Networks = "vgg16,vgg19,resnet50,resnet101,inception_v4,transformer",
    policies: Policies = "",
    optimizer: Optimizer = "momentum",
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
    *,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Search the parameter scale at batch 16 instead.")
    ] = False,
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Also how far splits could get at all; may take hours.")
    ] = False,
    add: Annotated[
        bool, typer.Option("--add", help="Add to the results there are; all that is not looked at stays.")
    ] = False,
    most: Annotated[int, typer.Option(min=1, help="Look for no larger batch, or scale.")] = 2**16,
) -> None:
    """The largest batch, or parameter scale, that each policy can run in the device's memory."""
    from tensile_db.bench import capacity as bench
    from tensile_db.bench.machines import spec_of

    document = bench.run(
        options.captures(cache, device),
        spec_of(device),
        networks=options.names(networks),
        policies=options.policies(policies),
        optimizer=optimizer,
        of_parameters=parameters,
        bounds=bounds,
        most=most,
        known=options.known(out_dir, name, "capacity", device) if add else None,
        tell=options.tell,
    )
    options.write(document, out_dir, name, has_former=add)


@app.command()
def ablations(
    device: Device = "sim:p100",
    optimizer: Optimizer = "momentum",
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """What Capuchin's mechanisms bring one by one."""
    from tensile_db.bench import ablations as bench
    from tensile_db.bench.machines import simulated

    spec = simulated(device, "ablations")
    document = bench.run(options.captures(cache, device), spec, optimizer=optimizer, tell=options.tell)
    options.write(document, out_dir, name)


@app.command("plan-time")
def plan_time(
    device: Device = "sim:a6000",
    networks: Networks = FIVE,
    policies: Policies = "tensile,auto",
    batch_size: BatchSize = 16,
    optimizer: Optimizer = "adam",
    curve: Annotated[
        str, typer.Option(help="Ops of the deep networks.")
    ] = "1000,2000,5000,10000,20000,50000",
    only_again: Annotated[
        bool, typer.Option("--only-again", help="Measure re-plans and arrivals only; other results stay.")
    ] = False,
    only_first: Annotated[
        bool, typer.Option("--only-first", help="Measure first plans only; re-plans and arrivals stay.")
    ] = False,
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """Time and memory of planning on this machine, against ops."""
    from tensile_db.bench import plan_time as bench
    from tensile_db.bench.machines import spec_of
    from tensile_db.bench.reports.plan_time_parts import Part
    from tensile_db.commands.own_policies import use_policy

    if only_again and only_first:
        raise InvalidRequest(
            "--only-again and --only-first each leave out what the other measures",
            hint="Give one of them, or neither to measure all.",
        )
    only = Part.AGAIN if only_again else Part.FIRST if only_first else None
    document = bench.run(
        options.captures(cache, device),
        spec_of(device),
        networks=options.names(networks),
        policies=options.policies(policies),
        batch=batch_size,
        optimizer=optimizer,
        curve_ops=options.numbers(curve, "--curve"),
        known=options.known(out_dir, name, "plan-time", device) if only else None,
        only=only,
        find=use_policy,
        tell=options.tell,
    )
    options.write(document, out_dir, name, has_former="kept" in document)


@app.command()
def bounds(
    device: Device = "sim:a6000",
    networks: Networks = FIVE,
    batch_size: BatchSize = 16,
    optimizer: Optimizer = "adam",
    out_dir: Out = RESULTS,
    name: Name = None,
    cache: Cache = None,
) -> None:
    """The least time of any plan, by budget."""
    from tensile_db.bench import bounds as bench
    from tensile_db.bench.machines import spec_of

    document = bench.run(
        options.captures(cache, device),
        spec_of(device),
        networks=options.names(networks),
        batch=batch_size,
        optimizer=optimizer,
        tell=options.tell,
    )
    options.write(document, out_dir, name)


@app.command()
def exact(
    policies: Policies = "",
    graphs: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    seed: Seed = 1,
    out_dir: Out = RESULTS,
    name: NameWithDefault = "exact",
) -> None:
    """Plans of small graphs, beside the best of all that are tried."""
    from tensile_db.bench import exact as bench

    document = bench.run(policies=options.policies(policies), graphs=graphs, seed=seed, tell=options.tell)
    options.write(document, out_dir, name)
