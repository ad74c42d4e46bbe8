"""The tables of `bench sharing`, `bench search` and `bench serving`."""

from collections.abc import Iterator
from typing import Any

from tensile_db.bench.networks.workloads import title_of
from tensile_db.bench.queueing.runs import MIXED
from tensile_db.bench.queueing.side_by_side import GOALS
from tensile_db.bench.queueing.simulation import percentile
from tensile_db.bench.reports.markdown import gib, table
from tensile_db.bench.reports.papers import SALUS_2, SALUS_SEARCH

#: Of the trace's jobs.
_PERCENTS = (5, 25, 50, 75, 95, 100)


def markdown(document: dict[str, Any]) -> str:
    """Return the tables, one after the other."""
    together = table(
        ["network", "jobs", "memory", "sharing", "lanes", "peak", "makespan", "goal: peak", "makespan"],
        _together(document),
    )
    without_lanes = table(
        ["network", "policy", *(f"{count} in {share:.0%}" for count, share in GOALS)],
        _without_lanes(document),
    )
    trace = table(
        ["sharing", "makespan", "queueing", "mean JCT", "95 % JCT", "FIFO's mean over it", *_SALUS_HEAD],
        _trace(document),
    )
    completions = table(["sharing", *(f"{percent} %" for percent in _PERCENTS)], _completions(document))
    fair = table(
        ["sharing", "one job", "two", "three"],
        (
            [row["sharing"], *(", ".join(f"{pace:.2f}" for pace in phase) for phase in row["phases"])]
            for row in document["fair"]
        ),
    )
    search = table(["jobs", "sharing", "makespan in s", "FIFO's over it", "Salus, PACK"], _search(document))
    return (
        f"Equal jobs that come at once, in ever less memory. Memory and peak are shares of the sum of the"
        f" eager peaks, makespans are over the jobs' one after another in eager PyTorch:\n\n{together}\n\n"
        f"With lanes, and without them by each policy, the jobs planned side by side into the same memory:"
        f" peak and makespan. Policies that heed no budget may be over it, others may need more:\n\n"
        f"{without_lanes}\n\n"
        f"A trace of {document['workload']['trace_jobs']} jobs, in minutes:\n\n{trace}\n\n"
        f"Within how many minutes of their coming so many of its jobs are done:\n\n{completions}\n\n"
        f"Three equal jobs, 15 s apart: the pace of each over that of one alone:\n\n{fair}\n\n"
        f"300 equal jobs that come at once:\n\n{search}"
    )


_SALUS_HEAD = ["Salus: makespan", "queueing", "mean JCT", "95 % JCT", "FIFO's mean over it"]


def _together(document: dict[str, Any]) -> Iterator[list[object]]:
    for row in document["together"]:
        title = "each once" if row["network"] == MIXED else title_of(row["network"])
        what = [title, row["jobs"], f"{row['share']:.1%}", row["sharing"]]
        goal = GOALS.get((row["jobs"], row["share"]), (None, None))
        if "refused" in row:
            yield [*what, None, row["refused"], None, *goal]
        else:
            yield [*what, row["lanes"], row["peak"], row["makespan"], *goal]


def _without_lanes(document: dict[str, Any]) -> Iterator[list[object]]:
    in_lanes = {
        (row["network"], row["jobs"], row["share"]): row
        for row in document["together"]
        if row["sharing"] == "auto"
    }
    found = {
        (row["network"], row["policy"], row["jobs"], row["share"]): row for row in document["without_lanes"]
    }
    policies = list(dict.fromkeys(policy for _, policy, _, _ in found))
    for network in dict.fromkeys(network for network, _, _, _ in found):
        title = title_of(network)
        yield [title, "auto, in lanes", *(_beside(in_lanes[network, *case], case[1]) for case in GOALS)]
        for policy in policies:
            shown = "vanilla: PyTorch's threads" if policy == "vanilla" else policy
            yield [title, shown, *(_beside(found[network, policy, *case], case[1]) for case in GOALS)]


def _beside(row: dict[str, Any], share: float) -> str:
    if "refused" in row:
        return str(row["refused"])
    if "needed" in row:
        return f"needs {row['needed']:.3f}"
    return f"{'over: ' if row['peak'] > share else ''}{row['peak']:.3f}, {row['makespan']:.3f}"


def _trace(document: dict[str, Any]) -> Iterator[list[object]]:
    rows = {row["sharing"]: row for row in document["trace"]}
    for name, row in rows.items():
        minutes = [
            round(row[key] / 60, 1) for key in ("makespan_s", "queueing_s", "completion_s", "completion_95_s")
        ]
        paper = SALUS_2.get(name)
        theirs = [None] * 5 if paper is None else [*paper, round(SALUS_2["fifo"][2] / paper[2], 2)]
        yield [name, *minutes, round(rows["fifo"]["completion_s"] / row["completion_s"], 2), *theirs]


def _completions(document: dict[str, Any]) -> Iterator[list[object]]:
    for row in document["trace"]:
        times = (percentile(row["completions_s"], percent) for percent in _PERCENTS)
        yield [row["sharing"], *(round(time / 60, 1) for time in times)]


def _search(document: dict[str, Any]) -> Iterator[list[object]]:
    fifo = {row["network"]: row["makespan_s"] for row in document["search"] if row["sharing"] == "fifo"}
    for row in document["search"]:
        paper = SALUS_SEARCH[row["network"]] if row["sharing"] == "pack" else None
        gain = round(fifo[row["network"]] / row["makespan_s"], 2)
        yield [row["network"], row["sharing"], row["makespan_s"], gain, paper]


def search(document: dict[str, Any]) -> str:
    """Return the table of a search's trials."""
    head = [
        "trials",
        "losers",
        "sharing",
        "makespan in s",
        "FIFO's over it",
        "FIFO's without stopping over it",
    ]
    return f"{document['workload']['trials']} trials that come at once:\n\n" + table(
        [*head, "Salus, PACK"], _trials(document)
    )


def _trials(document: dict[str, Any]) -> Iterator[list[object]]:
    fifo = {
        (row["network"], row["stops"]): row["makespan_s"]
        for row in document["rows"]
        if row["sharing"] == "fifo"
    }
    for row in document["rows"]:
        network, stops, makespan_s = row["network"], row["stops"], row["makespan_s"]
        paper = SALUS_SEARCH.get(network) if row["sharing"] == "pack" and not stops else None
        gains = [round(fifo[network, of] / makespan_s, 2) for of in (stops, False)]
        yield [network, "stop early" if stops else "go on", row["sharing"], makespan_s, *gains, paper]


def serving(document: dict[str, Any]) -> str:
    """Return the table of added latencies."""
    workload = document["workload"]
    head = ["rows/s of each", "beside", "memory GiB", "rows", "alone ms", "added ms", "95 % ms"]
    head += ["states moved", "training's pace"]
    return (
        f"{workload['models']} models, {workload['copies']} of each of {len(workload['networks'])} networks,"
        f" whose states take {gib(workload['state_nbytes'])} GiB together. A row's latency alone, and what"
        " comes on top of it in the mean and for all but 5 %; turns for which a model's state was copied to"
        " the device; what is left of the training's pace:\n\n" + table(head, _serving(document))
    )


def _serving(document: dict[str, Any]) -> Iterator[list[object]]:
    for row in document["rows"]:
        beside = document["workload"]["training"] if row["training"] else None
        what = [row["rate"], beside, gib(row["memory_nbytes"])]
        if "refused" in row:
            yield [*what, None, None, row["refused"], None, None, None]
            continue
        found = [row[key] for key in ("rows", "alone_ms", "added_ms", "added_95_ms")]
        yield [*what, *found, f"{row['moved']:.0%}", row["training_pace"] if row["training"] else None]
