"""The tables of `single`: every policy's best point beside the papers', and the frontier."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensile_db.bench.networks.workloads import title_of
from tensile_db.bench.points import best
from tensile_db.bench.reports.ahead import over_the_bound, whether_ahead
from tensile_db.bench.reports.markdown import gib, ms, table
from tensile_db.bench.reports.papers import DRAFT_1, TENSILE_III, Rates
from tensile_db.bench.single import SHARES, TARGETS

_BEST = """
Each policy at its best CBR, of budgets of {} % of eager's peak, and around the best of
these in steps of 2 %.  All are measured against `vanilla`, whose own MSR and CBR are 0 and whose EOR is 1:
""".strip()
_TENTHS = "10, 20, to 90"

_FRONTIER = """
What memory costs: the least EOR of a plan whose MSR is at least 0.5 / at least 0.7, and the lower bound on
it for plans of whole ops.  A dash is out of reach.
""".strip()
_FRONTIER_ASKED = """
What memory costs: the least EOR of a plan within these budgets and the least that will do whose MSR is at
least 0.5 / at least 0.7, and the lower bound on it for plans of whole ops.  A dash is out of reach, or no
such budget was asked for.
""".strip()

_OVER = """
How much longer `auto`'s plan takes than the lower bound for the same budget, by the budget as a share of
eager's peak; the last one is the least that whole ops need:
""".strip()

_MEASURED = """
Really run, each policy's plan of the best predicted CBR; MSR and EOR are against what `vanilla` held and
took:
""".strip()


def markdown(document: dict[str, Any]) -> str:
    """Return the tables."""
    # Results of before budgets could be asked for do not say which.
    shares = document.get("shares", SHARES)
    asked = list(shares) != list(SHARES)
    budgets = ", ".join(f"{share * 100:g}" for share in shares) if asked else _TENTHS
    parts = [
        _BEST.format(budgets),
        table(["network", "policy", "MSR", "EOR", "CBR", "paper MSR", "EOR", "CBR"], _best_points(document)),
        *(_unmet(document, shares) if asked else ()),
        _FRONTIER_ASKED if asked else _FRONTIER,
        _frontier(document),
    ]
    over = list(_over_the_bound(document, shares))
    if over:
        parts += [_OVER, table(["network", *(f"{share:.0%}" for share in shares), "the least"], over)]
    jobs = [
        (
            [title_of(network["network"])],
            {policy: found["points"] for policy, found in network["policies"].items()},
        )
        for network in document["networks"]
    ]
    parts += [said for said in [whether_ahead(["network"], jobs)] if said]
    measured = list(_measured_points(document))
    if measured:
        heads = ["network", "policy", "MSR", "EOR", "CBR", "predicted EOR", "peak over guaranteed", "ms"]
        parts += [_MEASURED, table(heads, measured)]
    return "\n\n".join(parts)


def _best_points(document: dict[str, Any]) -> Iterator[list[object]]:
    for network in document["networks"]:
        paper = _paper(document, network["network"])
        for policy, found in network["policies"].items():
            if policy == "vanilla":
                continue
            theirs: tuple[object, ...] = paper.get(policy, (None, None, None))
            chosen = best(found["points"])
            title = title_of(network["network"])
            if chosen is None:
                yield [title, policy, found["points"][0]["refused"], None, None, *theirs]
            else:
                yield [title, policy, chosen["msr"], chosen["eor"], chosen["cbr"], *theirs]


def _unmet(document: dict[str, Any], shares: Sequence[float]) -> Iterator[str]:
    """Say of each network which of the budgets asked for no policy's plan meets."""
    for network in document["networks"]:
        points = [point for found in network["policies"].values() for point in found["points"]]
        met = {point["share"] for point in points if "refused" not in point and "share" in point}
        if unmet := [f"{share * 100:g}" for share in shares if round(share, 4) not in met]:
            title = title_of(network["network"])
            least = network["least_nbytes"] / network["eager_peak_nbytes"]
            yield (
                f"No policy has a plan of {title} within {', '.join(unmet)} % of eager's peak; plans of whole"
                f" ops need {least:.1%}."
            )


def _over_the_bound(document: dict[str, Any], shares: Sequence[float]) -> Iterator[list[object]]:
    for network in document["networks"]:
        if "bound" not in network or "auto" not in network["policies"]:
            continue
        over = over_the_bound(network["policies"]["auto"]["points"], network["bound"])
        parts = [over.get(share) for share in shares]
        least = over.get(round(network["least_nbytes"] / network["eager_peak_nbytes"], 4))
        title = title_of(network["network"])
        yield [title, *(None if part is None else f"{part:.1%}" for part in [*parts, least])]


def _measured_points(document: dict[str, Any]) -> Iterator[list[object]]:
    for network in document["networks"]:
        title = title_of(network["network"])
        for policy, ran in network.get("measured", {}).items():
            if "refused" in ran:
                yield [title, policy, ran["refused"], *[None] * 5]
            else:
                within = round(ran["peak_nbytes"] / ran["guaranteed_peak_nbytes"], 3)
                figures = [ran["msr"], ran["eor"], ran["cbr"], ran["predicted_eor"]]
                yield [title, policy, *figures, within, ms(ran["time_ns"])]


def _frontier(document: dict[str, Any]) -> str:
    # Joined results may have more policies of one network than of another.
    met = dict.fromkeys(name for network in document["networks"] for name in network["policies"])
    policies = [name for name in met if name != "vanilla"]
    rows = []
    for network in document["networks"]:
        eors = {policy: network["policies"].get(policy, {}).get("eor_at_msr", {}) for policy in policies}
        bound = {str(point["msr"]): point["eor"] for point in network.get("bound", [])}
        rows.append(
            [
                title_of(network["network"]),
                gib(network["eager_peak_nbytes"]),
                ms(network["eager_ns"]),
                *(_pair(each) for each in [*eors.values(), bound]),
            ]
        )
    return table(["network", "eager peak GiB", "eager ms", *policies, "lower bound"], rows)


def _pair(eors: Mapping[str, float | None]) -> str:
    """Return the EOR for each target, with a dash where none was reached."""
    found = [eors.get(str(target)) for target in TARGETS]
    return " / ".join("-" if eor is None else f"{eor:.3f}" for eor in found)


def _paper(document: dict[str, Any], network: str) -> dict[str, Rates]:
    """Return the rates that a paper has of this machine, network and batch, by policy."""
    device, batch = document["device"]["name"], document["workload"]["batch"]
    if (device, batch) == ("sim:a6000", 16):
        return dict(TENSILE_III.get(network, {}))
    if (device, batch, network) == ("sim:rtx2080ti", 2, "vgg16"):
        # The draft's EOR counts added time only; its CBR then is MSR over that.
        return {
            policy: (msr, round(1 + eor, 4), round(msr / (1 + eor), 4))
            for policy, (msr, eor, _) in DRAFT_1.items()
        }
    return {}
