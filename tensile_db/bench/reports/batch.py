"""The tables of `batch`."""

from typing import Any

from tensile_db.bench.networks.workloads import title_of
from tensile_db.bench.reports.markdown import table
from tensile_db.bench.reports.papers import TSPLIT_12


def markdown(document: dict[str, Any]) -> str:
    """Return the table: each policy by batch."""
    by_key = {(row["network"], row["policy"], row["batch"]): row for row in document["rows"]}
    batches = document["workload"]["batches"]
    policies = dict.fromkeys(row["policy"] for row in document["rows"])
    in_memory = document["within"] == "memory"
    rows: list[list[object]] = []
    for network in document["workload"]["networks"]:
        for policy in policies:
            if policy == "vanilla" and not in_memory:
                continue
            if (network, policy, batches[0]) not in by_key:
                # Joined of runs of different policies.
                continue
            found = [by_key[network, policy, batch] for batch in batches]
            cells = [_speed(row["point"]) if in_memory else _rates(row) for row in found]
            rows.append([title_of(network), policy, *cells])
    lines = table(["network", "policy", *(f"batch {batch}" for batch in batches)], rows)
    if not in_memory:
        return f"MSR, EOR, CBR of each policy at its best CBR:\n\n{lines}"
    title = "Samples a second within the device's memory; a dash does not fit:"
    return f"{title}\n\n{lines}{_against_tsplit(document)}"


def _rates(row: dict[str, Any]) -> str:
    chosen = row["best"]
    return "-" if chosen is None else f"{chosen['msr']:.2f}, {chosen['eor']:.2f}, {chosen['cbr']:.2f}"


def _speed(point: dict[str, Any]) -> str:
    return f"{point['samples_per_s']:.0f}" if "samples_per_s" in point else "-"


def _against_tsplit(document: dict[str, Any]) -> str:
    """Return how much faster TSPLIT is than other policies, beside what the paper's text says of VGG-16."""
    speeds = {
        (row["batch"], row["policy"]): row["point"].get("samples_per_s")
        for row in document["rows"]
        if row["network"] == "vgg16"
    }
    rows: list[list[object]] = []
    for batch, theirs in TSPLIT_12.items():
        for policy, ratio in theirs.items():
            other = speeds.get((batch, policy))
            ours = [
                None if not other or not speed else round(speed / other, 2)
                for speed in (speeds.get((batch, "tsplit")), speeds.get((batch, "auto")))
            ]
            if (batch, "tsplit") in speeds or (batch, "auto") in speeds:
                rows.append([batch, policy, ratio or "does not run", *ours])
    if not rows or document["device"]["name"] != "sim:titanrtx":
        return ""
    head = ["batch", "against", "TSPLIT in the paper", "tsplit", "auto"]
    return (
        f"\n\nVGG-16, how many times as fast as another policy (TSPLIT section VI-B):\n\n{table(head, rows)}"
    )
