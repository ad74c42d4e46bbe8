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
_BY_POLICY = ("policies", "timelines", "measured")
#: What tells two jobs of one network apart.
_FACTS = ("ops", "eager_peak_nbytes", "eager_ns", "least_nbytes")
#: The same in every part, where documents have it.
_ASKED = ("shares", "within", "orders", "seeds")


def joined(whole: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a part's figures in the place of its own, or added.

    Of a run within some of the whole's budgets, points take the place of those within the same ones.

    Raises InvalidRequest where they are of different benchmarks, machines or jobs, or a benchmark's results
    have no parts; and for points of what the whole has no others of.
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
    of_some_budgets = bench == "single" and set() < set(other["shares"]) < set(known["shares"])
    if of_some_budgets:
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
    made_rows = (
        _rows_with_points(whole[rows], part[rows])
        if of_some_budgets
        else _joined_rows(whole[rows], part[rows], key)
    )
    document = dict(whole) | {rows: made_rows}
    if "networks" in whole["workload"]:
        named = dict.fromkeys([*whole["workload"]["networks"], *part["workload"]["networks"]])
        document["workload"] = {**whole["workload"], "networks": list(named)}
    made = [{"command": part["command"], "at": part["at"]}, *part.get("later", ())]
    return document | {"later": [*whole.get("later", ()), *made]}


def _joined_rows(
    whole: Sequence[dict[str, Any]], part: Sequence[dict[str, Any]], key: Sequence[str]
) -> list[dict[str, Any]]:
    rows = {tuple(row[name] for name in key): row for row in whole}
    for row in part:
        place = tuple(row[name] for name in key)
        known = rows.get(place, {})
        of_policies = {
            name: {**known.get(name, {}), **row.get(name, {})}
            for name in _BY_POLICY
            if name in known or name in row
        }
        # Another run may have left something out, as the bound.
        rows[place] = known | row | of_policies
    return list(rows.values())


def _rows_with_points(
    whole: Sequence[dict[str, Any]], part: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    rows = {row["network"]: row for row in whole}
    for row in part:
        network = row["network"]
        known = rows.get(network, {"policies": {}})
        _check_has(known, row)
        policies = {
            policy: figures_of(_by_budget(known["policies"][policy]["points"], found["points"]))
            for policy, found in row["policies"].items()
        }
        rows[network] = known | {"policies": known["policies"] | policies}
        if "bound" in row:
            rows[network]["bound"] = _by_budget(known["bound"], row["bound"])
    return list(rows.values())


def _check_has(known: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """Raise InvalidRequest where a row has points of another job, or of what the known one lacks."""
    lacking = [policy for policy in row["policies"] if policy not in known["policies"]]
    lacking += ["bound"] if "bound" in row and "bound" not in known else []
    hint = "Run the part within all budgets of the whole."
    if lacking:
        raise InvalidRequest(f"the results there have no {lacking[0]} of {row['network']}", hint=hint)
    for fact in _FACTS:
        if known[fact] != row[fact]:
            raise InvalidRequest(
                f"{row['network']} has {fact} {known[fact]} there, and {row[fact]} in the part", hint=hint
            )
    if "measured" in row or "measured" in known:
        raise InvalidRequest(f"of {row['network']} the best plans were run, by all budgets", hint=hint)


def _by_budget(known: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of both, largest budget first; where both have a budget, the other's.

    A policy that heeds no budget has one point.
    """
    points = {point["budget_nbytes"]: point for point in (*known, *others)}
    return sorted(points.values(), key=lambda point: -(point["budget_nbytes"] or 0))
