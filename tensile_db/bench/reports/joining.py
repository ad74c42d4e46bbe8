"""Results of several runs in one document: a run of some networks or policies, put in its place in another.

What takes hours is so run in parts, on as many machines as there are, and again where a policy has changed: a
run within some of the budgets gives these points alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tensile_db.bench.reports.known import check_alike
from tensile_db.bench.single import SHARES, figures_of
from tensile_db.errors import InvalidRequest

#: By benchmark: where its rows are, and what a row is of.
_ROWS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "batch": ("rows", ("network", "batch", "policy")),
    "bounds": ("rows", ("network",)),
    "first-iteration": ("rows", ("network",)),
    "mixed": ("rows", ("policy",)),
    "phases": ("rows", ("network",)),
    "scale": ("rows", ("network", "jobs", "policy")),
    "single": ("networks", ("network",)),
}
#: Of a row that is of all policies of a network: what has its figures by policy.
_BY_POLICY = ("policies", "timelines")
#: The same in every part, where documents have it.
_ASKED = ("shares", "within", "orders", "seeds")


def joined(whole: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a part's figures in the place of its own, or added.

    Raises InvalidRequest where they are of different benchmarks, machines or jobs, or a benchmark's results
    have no parts.
    """
    bench = whole["bench"]
    if bench != part["bench"]:
        raise InvalidRequest(
            f"these are results of {part['bench']}, and those of {bench}", hint="Join runs of one benchmark."
        )
    if bench not in _ROWS:
        adds = bench == "capacity"
        raise InvalidRequest(
            f"results of {bench} cannot be joined",
            hint="Run the part with --add instead." if adds else "Run all of it again.",
        )
    rows, key = _ROWS[bench]
    # Older documents do not say what is usual.
    known, other = ({"shares": list(SHARES)} | dict(each) for each in (whole, part))
    asked = [name for name in _ASKED if name in known and name in other]
    is_of_some = bench == "single" and set(other["shares"]) < set(known["shares"])
    if is_of_some:
        asked.remove("shares")
    # A row of mixed jobs is of all networks.
    together = {"networks"} if "network" in key else set()
    check_alike(
        known,
        other,
        *asked,
        *(name for name in whole["workload"] if name not in together),
        hint="Run the part with the options of the whole, or keep its results apart.",
    )
    document = dict(whole) | {rows: _joined_rows(whole[rows], part[rows], key, only_points=is_of_some)}
    if "networks" in whole["workload"]:
        named = dict.fromkeys([*whole["workload"]["networks"], *part["workload"]["networks"]])
        document["workload"] = {**whole["workload"], "networks": list(named)}
    made = [{"command": part["command"], "at": part["at"]}, *part.get("later", ())]
    return document | {"later": [*whole.get("later", ()), *made]}


def _joined_rows(
    whole: Sequence[dict[str, Any]],
    part: Sequence[dict[str, Any]],
    key: Sequence[str],
    *,
    only_points: bool,
) -> list[dict[str, Any]]:
    """Return the whole's rows with those of a part; only_points: of its figures, those within its budgets."""
    rows = {tuple(row[name] for name in key): row for row in whole}
    for row in part:
        place = tuple(row[name] for name in key)
        known = rows.get(place, {})
        of_policies = {
            name: {**known.get(name, {}), **row.get(name, {})}
            for name in _BY_POLICY
            if name in known or name in row
        }
        if only_points and known:
            for policy in row["policies"].keys() & known["policies"].keys():
                points = (each["policies"][policy]["points"] for each in (known, row))
                of_policies["policies"][policy] = figures_of(_by_budget(*points))
            if "bound" in row and "bound" in known:
                row = row | {"bound": _by_budget(known["bound"], row["bound"])}
        # Another run may have left something out, as the bound.
        rows[place] = known | row | of_policies
    return list(rows.values())


def _by_budget(known: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return both, of one budget the other one, largest budgets first; a policy without any has one point."""
    points = {point["budget_nbytes"]: point for point in (*known, *others)}
    return sorted(points.values(), key=lambda point: -(point["budget_nbytes"] or 0))
