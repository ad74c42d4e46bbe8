"""The tables of `scale` and `mixed`."""

from collections.abc import Iterator, Sequence
from typing import Any

from tensile_db.bench.networks.workloads import PAPER_FIVE, title_of
from tensile_db.bench.reports.ahead import Points, whether_ahead
from tensile_db.bench.reports.markdown import table
from tensile_db.bench.reports.papers import DRAFT_2, TENSILE_IV, Rates

_NONE: tuple[None, None, None] = (None, None, None)


def scale(document: dict[str, Any]) -> str:
    """Return the tables of equal jobs: each policy at its best CBR, and who is ahead of auto."""
    head = ["network", "jobs", "policy", "MSR", "EOR", "CBR", "paper MSR", "EOR", "CBR"]
    jobs: dict[tuple[str, int], dict[str, Sequence[dict[str, Any]]]] = {}
    for row in document["rows"]:
        title = title_of(row["network"])
        jobs.setdefault((title, row["jobs"]), {})[row["policy"]] = row["points"]
    parts = ["Each policy at its best CBR:", table(head, _scale_rows(document))]
    return "\n\n".join([*parts, *_ahead(["network", "jobs"], list(jobs.items()))])


def _ahead(heads: Sequence[str], jobs: Sequence[tuple[Sequence[object], Points]]) -> list[str]:
    said = whether_ahead(heads, jobs)
    return [said] if said else []


def _scale_rows(document: dict[str, Any]) -> Iterator[list[object]]:
    for row in document["rows"]:
        if row["policy"] == "vanilla":
            continue
        paper = _paper(document, row["network"], row["jobs"]).get(row["policy"], _NONE)
        title = title_of(row["network"])
        yield [title, row["jobs"], row["policy"], *_figures(row), *paper]


def mixed(document: dict[str, Any]) -> str:
    """Return the table of different jobs: each policy at its best CBR, then at every share."""
    # A policy that heeds no budget has one point, of no share.
    shares = max(
        ([p["share"] for p in row["points"] if p["share"] is not None] for row in document["rows"]), key=len
    )
    workload = document["workload"]
    is_paper = document["device"]["name"] == "sim:a6000" and workload["batch"] == 16
    is_paper &= {*workload["networks"]} == {*PAPER_FIVE}
    best = table(
        ["policy", "MSR", "EOR", "CBR", "paper MSR", "EOR", "CBR"],
        (
            [row["policy"], *_figures(row), *(TENSILE_IV.get(row["policy"], _NONE) if is_paper else _NONE)]
            for row in document["rows"]
            if row["policy"] != "vanilla"
        ),
    )
    by_share = table(
        ["policy", *(f"MSR, EOR at {share:.0%}" for share in shares)],
        (
            [row["policy"], *(_point(point) for point in row["points"])]
            for row in document["rows"]
            if [point["share"] for point in row["points"]] == shares
        ),
    )
    points = {row["policy"]: row["points"] for row in document["rows"]}
    return "\n\n".join(
        [
            f"Each policy at its best CBR, the mean of {len(document['seeds'])} orders:",
            best,
            "By the memory of the device, as a share of the sum of the eager peaks:",
            by_share,
            *_ahead([], [((), points)]),
        ]
    )


def _figures(row: dict[str, Any]) -> tuple[object, ...]:
    chosen = row["best"]
    if chosen is None:
        return (row["points"][0]["refused"], None, None)
    return chosen["msr"], chosen["eor"], chosen["cbr"]


def _point(point: dict[str, Any]) -> str:
    return "-" if "refused" in point else f"{point['msr']:.3f}, {point['eor']:.3f}"


def _paper(document: dict[str, Any], network: str, jobs: int) -> dict[str, Rates]:
    device, batch = document["device"]["name"], document["workload"]["batch"]
    if (device, batch, network) != ("sim:rtx2080ti", 2, "vgg16"):
        return {}
    # The draft's EOR counts added time only.
    return {
        policy: (msr, round(1 + eor, 4), round(msr / (1 + eor), 4))
        for policy, (msr, eor, _) in DRAFT_2.get(jobs, {}).items()
    }
