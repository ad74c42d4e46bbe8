"""The tables of `phases` and `first-iteration`."""

from collections.abc import Iterator
from typing import Any

from tensile_db.bench.networks.workloads import title_of
from tensile_db.bench.reports.markdown import table
from tensile_db.bench.reports.papers import TENSILE_I, TENSILE_II


def phases(document: dict[str, Any]) -> str:
    """Return the table of the phases."""
    head = ["network", "policy", "phase", "MSR", "EOR", "CBR", "paper MSR", "EOR", "CBR"]
    return table(head, _phase_rows(document))


def _phase_rows(document: dict[str, Any]) -> Iterator[list[object]]:
    for row in document["rows"]:
        title = title_of(row["network"])
        for policy, found in row["policies"].items():
            if "refused" in found:
                yield [title, policy, found["refused"], *[None] * 6]
                continue
            for phase, made in found.items():
                paper: tuple[object, ...] = (None, None, None)
                if policy == "tensile" and document["device"]["name"] == "sim:a6000":
                    paper = TENSILE_I.get(row["network"], {}).get(phase, paper)
                yield [title, policy, phase, made["msr"], made["eor"], made["cbr"], *paper]


def first_iteration(document: dict[str, Any]) -> str:
    """Return the table of the first iteration."""
    head = [
        "network",
        "method",
        "MSR",
        "EOR of the first iteration",
        "planning s",
        "paper EOR",
        "prediction s",
    ]
    rows: list[list[object]] = []
    for row in document["rows"]:
        title = title_of(row["network"])
        paper = TENSILE_II.get(row["network"]) if document["device"]["name"] == "sim:a6000" else None
        for policy, made in row["policies"].items():
            theirs = (paper[0], paper[2]) if paper and policy == "tensile" else (None, None)
            if "refused" in made:
                rows.append([title, policy, None, made["refused"], None, *theirs])
            else:
                rows.append([title, policy, made["msr"], made["eor"], made["planning_s"], *theirs])
        passive = "does not fit" if row["passive_eor"] is None else row["passive_eor"]
        rows.append(
            [title, "Capuchin, passive mode", None, passive, None, None if paper is None else paper[1], None]
        )
    return table(head, rows)
