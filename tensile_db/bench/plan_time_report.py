"""The tables of `plan-time`."""

from typing import Any

from tensile_db.bench.markdown import GIB, table
from tensile_db.bench.workloads import WORKLOADS


def markdown(document: dict[str, Any]) -> str:
    """Return both tables: networks, and the curve."""
    networks = table(
        ["network", "memory", "policy", "seconds", "GiB", "MSR", "EOR"],
        (
            [
                WORKLOADS[row["network"]].title if row["network"] in WORKLOADS else row["network"],
                "ample" if row["share"] is None else f"{row['share']:.0%} of eager's peak",
                row["policy"],
                *_cells(row),
            ]
            for row in document["rows"]
        ),
    )
    curve = table(
        ["ops", "policy", "seconds", "GiB", "MSR", "EOR"],
        ([f"{row['ops']:,}", row["policy"], *_cells(row)] for row in document["curve"]),
    )
    return f"{networks}\n\nEver deeper ResNets, half of eager's peak:\n\n{curve}"


def _cells(row: dict[str, Any]) -> list[object]:
    if "refused" in row:
        return [row["refused"], None, None, None]
    return [row["seconds"], round(row["memory_nbytes"] / GIB, 3), row["msr"], row["eor"]]
