"""The tables of `plan-time`."""

from typing import Any

from tensile_db.bench.networks.workloads import WORKLOADS
from tensile_db.bench.reports.markdown import GIB, table


def markdown(document: dict[str, Any]) -> str:
    """Return the tables: networks, re-plans, and the curve."""
    networks = table(
        ["network", "memory", "policy", "seconds", "GiB", "MSR", "EOR"],
        (
            [
                _title(row["network"]),
                "ample" if row["share"] is None else f"{row['share']:.0%} of eager's peak",
                row["policy"],
                *_cells(row),
            ]
            for row in document["rows"]
        ),
    )
    again = table(
        [
            *("network", "planned again after", "policy", "seconds", "GiB", "MSR", "EOR"),
            *("times a first plan's", "improved in seconds", "to times a first plan's"),
        ],
        (
            [
                _title(row["network"]),
                _CHANGES[row["change"]],
                row["policy"],
                *_cells(row),
                row.get("slower"),
                row.get("improved_s"),
                row.get("improved"),
            ]
            for row in document["again"]
        ),
    )
    curve = table(
        ["ops", "policy", "seconds", "GiB", "MSR", "EOR"],
        ([f"{row['ops']:,}", row["policy"], *_cells(row)] for row in document["curve"]),
    )
    between = (
        "Planned again, from half of eager's peak: seconds that others wait for, and how many times a first"
        " plan's time an iteration takes then; where better plans are looked for, while nobody waits, what"
        " that takes and comes to:"
    )
    kept = document.get("kept")
    older = f"All but the re-plans: `{kept['command']}`, {kept['at']}.\n\n" if kept else ""
    tables = f"{networks}\n\n{between}\n\n{again}\n\nEver deeper ResNets, half of eager's peak:\n\n{curve}"
    return older + tables


#: What makes a re-plan, as `planned_alone.py` does it.
_CHANGES = {"drift": "latencies 0.7 to 1.4 times", "arrival": "a fifth less memory"}


def _title(network: str) -> str:
    return WORKLOADS[network].title if network in WORKLOADS else network


def _cells(row: dict[str, Any]) -> list[object]:
    if "refused" in row:
        return [row["refused"], None, None, None]
    return [row["seconds"], round(row["memory_nbytes"] / GIB, 3), row["msr"], row["eor"]]
