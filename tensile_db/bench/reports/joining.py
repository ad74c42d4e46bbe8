"""Results of several runs in one document: a run of some networks or policies, put in its place in another.

What takes hours is so run in parts, on as many machines as there are, and again where a policy has changed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tensile_db.bench.reports.known import check_alike
from tensile_db.errors import InvalidRequest

#: What a row is of, as far as a benchmark's rows have it.
_KEYS = ("network", "jobs", "batch", "policy")
#: Of a row that is of all policies of a network: by what its figures are kept.
_KEPT_BY_POLICY = ("policies", "timelines")
#: The same in every part, where a benchmark has it.
_ASKED = ("shares", "within", "of", "orders", "seeds")
_LISTS = ("rows", "networks")


def joined(whole: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a part's figures in the place of its own, or added.

    Raises InvalidRequest where they are of different benchmarks, machines or jobs, or a benchmark's results
    have no parts.
    """
    if whole["bench"] != part["bench"]:
        raise InvalidRequest(
            f"these are results of {part['bench']}, and those of {whole['bench']}",
            hint="Join runs of one benchmark.",
        )
    asked = [name for name in _ASKED if name in whole and name in part]
    check_alike(whole, part, *asked, *(name for name in whole["workload"] if name != "networks"))
    if whole["bench"] == "capacity":
        raise InvalidRequest(
            "results of capacity say of each figure which command made it",
            hint="Run the part with --add instead.",
        )
    lists = [name for name in _LISTS if name in whole]
    if not lists:
        raise InvalidRequest(
            f"results of {whole['bench']} are those of one run", hint="Run all of it again, without join."
        )
    document = dict(whole) | {name: _joined_rows(whole[name], part[name]) for name in lists}
    if "networks" in whole["workload"]:
        named = dict.fromkeys([*whole["workload"]["networks"], *part["workload"]["networks"]])
        document["workload"] = {**whole["workload"], "networks": list(named)}
    made = [{"command": part["command"], "at": part["at"]}, *part.get("later", ())]
    return document | {"later": [*whole.get("later", ()), *made]}


def told_of_parts(document: Mapping[str, Any]) -> str:
    """Return the sentences that say which commands made a document, and when."""
    first = f"Made by `{document['command']}`, {document['at'][:10]}."
    later = [f"`{made['command']}`, {made['at'][:10]}" for made in document.get("later", ())]
    return f"{first} In its place, in part: {'; '.join(later)}." if later else first


def _joined_rows(whole: Sequence[dict[str, Any]], part: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = {_key(row): row for row in whole}
    for row in part:
        known = rows.get(_key(row), {})
        of_policies = {
            name: {**known.get(name, {}), **row.get(name, {})}
            for name in _KEPT_BY_POLICY
            if name in known or name in row
        }
        # Another run may have left something out, as the bound.
        rows[_key(row)] = known | row | of_policies
    return list(rows.values())


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in _KEYS if name in row)
