"""What sections left in a folder, and what it is of eager PyTorch's time and memory."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

#: Of eager's time: without memory pressure, and with half of eager's memory, by batch.
_FREELY = {16: 0.6, 64: 0.95}
_HALVED = {16: 1.0, 64: 1.15}


def read(folder: Path, section: str) -> Entry:
    """Return what a section wrote; nothing where it did not."""
    path = folder / f"{section}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def entries_of(folder: Path, section: str) -> list[Entry]:
    """Return what a section measured, in order."""
    found: list[Entry] = read(folder, section).get("entries", [])
    return found


def by_case(folder: Path) -> dict[tuple[str, int], list[Entry]]:
    """Return the ways to train a network, by its name and batch size."""
    cases: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in [*entries_of(folder, "single"), *entries_of(folder, "compiled")]:
        cases[entry["network"], entry["batch"]].append(entry)
    return cases


def way_of(entry: Entry) -> str:
    """Return what to call a way: with its share of eager's memory, and how it was run."""
    way = entry["way"] if entry.get("share") is None else f"{entry['way']} at {entry['share']}"
    if entry.get("steered"):
        way += f", steered, {entry['astray']} times elsewhere" if entry["astray"] else ", steered"
    # Iterations by a plan are replayed unless its way says otherwise.
    return f"{way}, not replayed" if entry["way"] == "auto" and entry.get("replayed") == 0 else way


def eager_time_ns(eager: Entry) -> int:
    """Return eager's time where its host runs ahead: what a user sees."""
    return int(min(eager["pipelined_ns"], eager["time_ns"]))


def ratios_of(entry: Entry, eager: Entry) -> list[object]:
    """Return ms, time and peak over eager's, and peak over what it may be."""
    time_ns = min(entry.get("pipelined_ns", entry["time_ns"]), entry["time_ns"])
    peak_nbytes = peak_nbytes_of(entry)
    budget = entry.get("budget_nbytes", entry.get("guaranteed_peak_nbytes"))
    eager_nbytes = eager["max_allocated_nbytes"]
    return [
        f"{time_ns / 1e6:.2f}",
        f"{time_ns / eager_time_ns(eager):.3f}",
        f"{peak_nbytes / eager_nbytes:.3f}" if eager_nbytes else "",
        f"{peak_nbytes / budget:.3f}" if budget else "",
    ]


def peak_nbytes_of(entry: Entry) -> int:
    """Return what was held at most: a recording's memory is allocated once, and held by the account."""
    if entry.get("replayed"):
        return int(entry["account_peak_nbytes"])
    return int(entry.get("allocated_peak_nbytes", entry.get("max_allocated_nbytes", 0)))


def beyond(entry: Entry) -> list[object]:
    """Return what the allocator had of the driver over the peak, and the lower bound's part of the time."""
    peak_nbytes = peak_nbytes_of(entry)
    reserved = entry.get("reserved_peak_nbytes", entry.get("max_reserved_nbytes"))
    bound_ns = entry.get("bound_ns")
    return [
        f"{reserved / peak_nbytes:.3f}" if reserved and peak_nbytes else "",
        f"{bound_ns / entry['time_ns']:.3f}" if bound_ns else "",
    ]


def verdict_of(entry: Entry, eager: Entry) -> str:
    """Return the goal for the time and whether it is met; empty where there is none."""
    goals = _FREELY if entry.get("share") is None else _HALVED if entry["share"] == 0.5 else {}
    goal = goals.get(entry["batch"])
    if entry["way"] != "auto" or goal is None:
        return ""
    met = entry["time_ns"] <= goal * eager_time_ns(eager)
    return f"{goal}: {'met' if met else 'missed'}"
