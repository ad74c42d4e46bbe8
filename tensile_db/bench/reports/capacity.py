"""The table of `capacity`: ours beside the papers', and both as multiples of what fits without a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from tensile_db.bench.networks.workloads import title_of
from tensile_db.bench.reports.markdown import table
from tensile_db.bench.reports.papers import CAPUCHIN_2, TSPLIT_IV, TSPLIT_V


def markdown(document: dict[str, Any]) -> str:
    """Return the table: a row for each network and policy."""
    papers = _papers(document)
    rows: list[list[object]] = []
    for row in document["rows"]:
        ours, theirs = row["policies"], papers.get(row["network"], {})
        # Where eager had no end of sizes either, nothing is a known multiple of what fits.
        eager = ours.get("vanilla", {})
        base = None if eager.get("most") else eager.get("largest")
        their_base = theirs.get("vanilla")
        for policy, found in ours.items():
            size, their_size = found["largest"], theirs.get(policy)
            rows.append(
                [
                    title_of(row["network"]),
                    policy,
                    _size(found),
                    _or_more(_ratio(size, base), found),
                    None if size is None else found["eor"],
                    their_size if policy in theirs and their_size is not None else _absent(theirs, policy),
                    _ratio(their_size, their_base),
                ]
            )
        rows.append(
            [
                title_of(row["network"]),
                "any plan of whole ops",
                row["bound"],
                _ratio(row["bound"], base),
            ]
        )
        if "split_bound" in row:
            limit = row["split_bound"]
            next_gib = limit["needed_nbytes"] / 2**30
            what = f"any plan with splits (above, {limit['op']} needs {next_gib:.1f} GiB)"
            ratio = _ratio(limit["largest"], base)
            rows.append([title_of(row["network"]), what, limit["largest"], ratio])
    what = "parameter scale at batch 16" if document["of"] == "parameters" else "batch"
    head = ["network", "policy", f"largest {what}", "times eager's", "EOR there", "paper", "times eager's"]
    tables = table(head, [[*row, *[None] * (len(head) - len(row))] for row in rows])
    return "\n\n".join([tables, *_made_by_others(document)])


def _size(found: Mapping[str, Any]) -> object:
    if found["largest"] is None:
        return found.get("refused", "does not fit")
    return _or_more(found["largest"], found)


def _or_more(figure: object, found: Mapping[str, Any]) -> object:
    return figure if figure is None or not found.get("most") else f"{figure} or more"


def _made_by_others(document: dict[str, Any]) -> list[str]:
    """Return what other commands than the document's made, a paragraph each."""
    others: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in document["rows"]:
        for policy, found in row["policies"].items():
            if "made" in found:
                networks = others.setdefault((found["made"]["command"], found["made"]["at"]), {})
                networks.setdefault(title_of(row["network"]), []).append(policy)
    return [
        f"{_with_policies(networks)}: made by `{command}`, {at}."
        for (command, at), networks in others.items()
    ]


def _with_policies(networks: Mapping[str, Sequence[str]]) -> str:
    """Return networks with their policies; those with the same policies stand together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for network, policies in networks.items():
        alike.setdefault(tuple(policies), []).append(network)
    return "; ".join(f"{', '.join(titles)} ({', '.join(policies)})" for policies, titles in alike.items())


def _absent(theirs: Mapping[str, int | None], policy: str) -> str | None:
    return "cannot run it" if policy in theirs else None


def _ratio(size: int | None, base: int | None) -> str | None:
    return None if size is None or not base else f"{size / base:.1f}"


def _papers(document: dict[str, Any]) -> Mapping[str, Mapping[str, int | None]]:
    """Return the paper's table for this machine."""
    tables = {
        ("sim:titanrtx", "batch"): TSPLIT_IV,
        ("sim:titanrtx", "parameters"): TSPLIT_V,
        ("sim:p100", "batch"): CAPUCHIN_2,
    }
    return tables.get((document["device"]["name"], document["of"]), {})
