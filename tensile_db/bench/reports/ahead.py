"""How far `auto` is from its goals: no policy faster within the same memory, and near the lower bound."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isinf
from typing import Any

from tensile_db.bench.reports.markdown import table

Points = Mapping[str, Sequence[Mapping[str, Any]]]

#: EORs are rounded to four digits.
_EQUAL = 5e-4
_OURS = "auto"

_FASTER = """
Faster than `auto` within the same memory; a policy that heeds no budget is compared with the fastest of
`auto`'s plans that save as much:
""".strip()
_NOBODY = "Within the same memory no policy's plan is faster than `auto`'s."


def faster_than_auto(points: Points) -> list[tuple[float | None, str, float, float]]:
    """Return share of the memory, policy, its EOR and auto's where it is faster, most memory first.

    points: by policy.  Share: None of a policy that heeds no budget; auto's EOR: infinite where it has none.
    """
    return sorted(_faster(points), key=lambda row: (row[0] is None, -(row[0] or 0.0), row[1:]))


def whether_ahead(heads: Sequence[str], jobs: Iterable[tuple[Sequence[object], Points]]) -> str:
    """Return the table of who is faster than auto, or that nobody is; nothing where auto was not asked for.

    heads: of the columns that say which jobs; jobs: these columns, and the points by policy.
    """
    cases = [(said, points) for said, points in jobs if _OURS in points]
    if not any(len(points.keys() - {_OURS, "vanilla"}) for _, points in cases):
        return ""
    rows: list[list[object]] = [
        [
            *said,
            "any" if share is None else f"{share:.0%}",
            policy,
            eor,
            "refused" if isinf(ours) else ours,
        ]
        for said, points in cases
        for share, policy, eor, ours in faster_than_auto(points)
    ]
    if not rows:
        return _NOBODY
    return f"{_FASTER}\n\n{table([*heads, 'memory', 'policy', 'EOR', 'of auto'], rows)}"


def over_the_bound(
    points: Sequence[Mapping[str, Any]], bound: Sequence[Mapping[str, Any]]
) -> dict[float, float]:
    """Return by what part a policy's plans take more time than the lower bound, by share of the memory."""
    least = {entry["budget_nbytes"]: entry["time_ns"] for entry in bound}
    return {
        point["share"]: point["time_ns"] / least[point["budget_nbytes"]] - 1
        for point in points
        if "time_ns" in point and point["budget_nbytes"] in least
    }


def _faster(points: Points) -> Iterator[tuple[float | None, str, float, float]]:
    ours = [point for point in points.get(_OURS, ()) if "eor" in point]
    at_share = {point["share"]: point.get("eor", inf) for point in points.get(_OURS, ())}
    for policy, entries in points.items():
        for point in entries:
            if policy in (_OURS, "vanilla") or "eor" not in point:
                continue
            share = point.get("share")
            if share is None:
                eor = min((our["eor"] for our in ours if our["msr"] >= point["msr"]), default=None)
            else:
                eor = at_share.get(share)
            if eor is not None and point["eor"] < eor - _EQUAL:
                yield share, policy, point["eor"], eor
