"""What a run came to: the goals beside what was measured, and time against peak as a picture.

    python -m bench.gpu.report [FOLDER]

Reads whatever sections left in FOLDER, whole or not, and writes report.md and frontier.svg beside them.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.results import RESULTS, table

Entry = dict[str, Any]

#: Of eager's time: without memory pressure, and with half of eager's memory, by batch.
_FREELY = {16: 0.6, 64: 0.95}
_HALVED = {16: 1.0, 64: 1.15}


def main() -> None:
    """Write the report of a folder and print it."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "gpu"
    print(report(folder))


def report(folder: Path) -> str:
    """Write report.md, and frontier.svg where matplotlib is, and return the former."""
    parts = ["# The cuda device, measured", *_machine(folder), *_correctness(folder), *_replay(folder)]
    parts += [*_product(folder), *_single(folder), *_jobs(folder), *_formats(folder)]
    parts += [*_capacity(folder), *_broken(folder)]
    text = "\n\n".join(parts) + "\n"
    (folder / "report.md").write_text(text)
    try:
        _draw(folder)
    except ImportError:
        text += "\n(no picture: there is no matplotlib here)\n"
    return text


def _read(folder: Path, section: str) -> Entry:
    path = folder / f"{section}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _entries(folder: Path, section: str) -> list[Entry]:
    found: list[Entry] = _read(folder, section).get("entries", [])
    return found


def _machine(folder: Path) -> Iterator[str]:
    document = _read(folder, "device")
    if document:
        device, spec = document.get("device", {}), document.get("spec", {})
        yield f"{device.get('name')}, driver {device.get('driver')}, {json.dumps(document.get('versions'))}"
        yield "Measured: " + json.dumps(spec)
        for entry in _entries(folder, "device"):
            if entry["check"] == "codes":
                yield _codes(entry)


def _codes(entry: Entry) -> str:
    rows = [
        [
            name,
            _us(entry[f"{name}_ns"]),
            _us(entry[f"{with_codes}_ns"]),
            _us(entry[f"{pack}_ns"]),
            entry["same"][name],
        ]
        for name, with_codes, pack in (
            ("threshold_backward", "threshold_backward_of_signs", "pack_signs"),
            ("native_dropout_backward", "native_dropout_backward_of_signs", "pack_mask"),
            ("max_pool2d_backward", "max_pool2d_backward_of_codes", "pack_uint16"),
        )
        # Results of before have fewer.
        if name in entry["same"]
    ]
    head = ["op", "us", "with a code", "making the code", "same bits"]
    by = "Triton's kernels" if entry["triton"] else "PyTorch's own operators"
    return f"## Codes, {entry['shape']}, signs by {by}\n\n" + table(head, rows)


def _us(ns: int) -> str:
    return f"{ns / 1000:.0f}"


def _correctness(folder: Path) -> Iterator[str]:
    entries = _entries(folder, "correctness")
    if entries:
        keys = ["network", "policy", "equal", "differing", "of", "eager_differs_from_itself", "swap_ins"]
        keys.append("recomputed_ops")
        yield "## Bits equal to eager's\n\n" + table(
            keys, [[entry[key] for key in keys] for entry in entries]
        )


def _replay(folder: Path) -> Iterator[str]:
    rows: list[list[object]] = []
    eager_ns = 0
    for entry in _entries(folder, "replay"):
        if entry["way"] == "eager":
            eager_ns = _eager_ns(entry)
        if "time_ns" in entry:
            ratio = f"{entry['time_ns'] / eager_ns:.3f}"
            keys = ("replayed", "equal", "held_nbytes", "passages", "joined", "reason")
            known = [entry.get(key, "") for key in keys]
            rows.append(
                [
                    entry["network"],
                    entry["batch"],
                    entry["optimizer"],
                    _way(entry),
                    f"{entry['time_ns'] / 1e6:.2f}",
                    ratio,
                    *known,
                ]
            )
    if rows:
        head = [
            "network",
            "batch",
            "optimizer",
            "way",
            "ms",
            "time/eager",
            "replayed",
            "equal",
            "held",
            "passages",
            "joined",
            "why not",
        ]
        yield "## Replayed iterations\n\n" + table(head, rows)


def _product(folder: Path) -> Iterator[str]:
    document = _read(folder, "product")
    if "not_run" in document:
        yield f"## From SQL\n\nNot run: {document['not_run']}"
    keys = ["within", "attempt", "equal", "differing", "of", "eager_differs_from_itself"]
    rows: list[list[object]] = []
    for entry in _entries(folder, "product"):
        if "iteration_ns" in entry:
            eager_ns = entry.get("eager_iteration_ns")
            rows.append(
                [
                    entry["way"],
                    entry["network"],
                    _short(entry["memory_limit_nbytes"]),
                    f"{entry['over_eager_peak']:.3f}",
                    f"{entry['iteration_ns'] / 1e6:.2f}",
                    f"{entry['iteration_ns'] / eager_ns:.3f}" if eager_ns else "",
                    *(_short(entry.get(key)) for key in keys),
                ]
            )
    if rows:
        head = ["way", "network", "limit", "peak/eager", "ms", "time/eager", *keys]
        yield "## From SQL\n\n" + table(head, rows)
    for entry in _entries(folder, "product"):
        if "as_eager" in entry:
            yield f"{entry['way']}: {entry['as_eager']} of {entry['rows']} rows as eager predicts them"


def _single(folder: Path) -> Iterator[str]:
    rows = []
    for (network, batch), entries in _by_case(folder).items():
        ways = {entry["way"]: entry for entry in entries if "share" not in entry}
        eager = ways.get("eager")
        if eager is None:
            continue
        rows += [
            [
                network,
                batch,
                _way(entry),
                *_ratios(entry, eager),
                *_beyond(entry),
                _verdict(entry, eager),
            ]
            for entry in entries
            if "time_ns" in entry
        ]
    if rows:
        head = ["network", "batch", "way", "ms", "time/eager", "peak/eager", "peak/budget", "reserved/peak"]
        head += ["bound/time", "goal"]
        how = f", in {precision}" if (precision := _read(folder, "single").get("precision")) else ""
        yield f"## One job{how}\n\n" + table(head, rows)


def _by_case(folder: Path) -> dict[tuple[str, int], list[Entry]]:
    cases: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in [*_entries(folder, "single"), *_entries(folder, "compiled")]:
        cases[entry["network"], entry["batch"]].append(entry)
    return cases


def _way(entry: Entry) -> str:
    way = entry["way"] if entry.get("share") is None else f"{entry['way']} at {entry['share']}"
    if entry.get("steered"):
        way += f", steered, {entry['astray']} times elsewhere" if entry["astray"] else ", steered"
    # Iterations by a plan are replayed unless its way says otherwise.
    return f"{way}, not replayed" if entry["way"] == "auto" and entry.get("replayed") == 0 else way


def _eager_ns(eager: Entry) -> int:
    """Return eager's time where its host runs ahead: what a user sees."""
    return int(min(eager["pipelined_ns"], eager["time_ns"]))


def _ratios(entry: Entry, eager: Entry) -> list[object]:
    """Return ms, time and peak over eager's, and peak over what it may be."""
    time_ns = min(entry.get("pipelined_ns", entry["time_ns"]), entry["time_ns"])
    peak_nbytes = _peak_nbytes(entry)
    budget = entry.get("budget_nbytes", entry.get("guaranteed_peak_nbytes"))
    eager_nbytes = eager["max_allocated_nbytes"]
    return [
        f"{time_ns / 1e6:.2f}",
        f"{time_ns / _eager_ns(eager):.3f}",
        f"{peak_nbytes / eager_nbytes:.3f}" if eager_nbytes else "",
        f"{peak_nbytes / budget:.3f}" if budget else "",
    ]


def _peak_nbytes(entry: Entry) -> int:
    """Return what was held at most: a recording's memory is allocated once, and held by the account."""
    if entry.get("replayed"):
        return int(entry["account_peak_nbytes"])
    return int(entry.get("allocated_peak_nbytes", entry.get("max_allocated_nbytes", 0)))


def _beyond(entry: Entry) -> list[object]:
    """Return what the allocator had of the driver over the peak, and the lower bound's part of the time."""
    peak_nbytes = _peak_nbytes(entry)
    reserved = entry.get("reserved_peak_nbytes", entry.get("max_reserved_nbytes"))
    bound_ns = entry.get("bound_ns")
    return [
        f"{reserved / peak_nbytes:.3f}" if reserved and peak_nbytes else "",
        f"{bound_ns / entry['time_ns']:.3f}" if bound_ns else "",
    ]


def _verdict(entry: Entry, eager: Entry) -> str:
    goals = _FREELY if entry.get("share") is None else _HALVED if entry["share"] == 0.5 else {}
    goal = goals.get(entry["batch"])
    if entry["way"] != "auto" or goal is None:
        return ""
    met = entry["time_ns"] <= goal * _eager_ns(eager)
    return f"{goal}: {'met' if met else 'missed'}"


def _jobs(folder: Path) -> Iterator[str]:
    entries = _entries(folder, "jobs")
    if entries:
        keys = [
            "way",
            "jobs",
            "share",
            "lanes",
            "replayed",
            "seconds",
            "over_serial",
            "over_eager_peaks",
            "skipped",
            "failed",
        ]
        yield "## Jobs at once\n\n" + table(
            keys, [[_short(each.get(key)) for key in keys] for each in entries]
        )


def _formats(folder: Path) -> Iterator[str]:
    entries = [entry for entry in _entries(folder, "formats") if "time_ns" in entry]
    eager = {(e["precision"], e["memory_format"]): e for e in entries if e["way"] == "eager"}
    plain = eager.get(("float32", "contiguous"))
    rows = []
    for entry in entries:
        alike = eager.get((entry["precision"], entry["memory_format"]))
        if alike is not None:
            ms, over_eager, peak_over_eager, _ = _ratios(entry, alike)
            over_plain = "" if plain is None else _ratios(entry, plain)[1]
            known = [entry["precision"], entry["memory_format"], _way(entry)]
            rows.append([*known, ms, over_eager, over_plain, peak_over_eager])
    if rows:
        head = [
            "precision",
            "memory format",
            "way",
            "ms",
            "time/eager's in the same",
            "time/eager's in float32",
            "peak/eager's in the same",
        ]
        network = f"{entries[0]['network']}, batch {entries[0]['batch']}"
        yield f"## Precisions and memory formats: {network}\n\n" + table(head, rows)


def _capacity(folder: Path) -> Iterator[str]:
    entries = _entries(folder, "capacity")
    rows = []
    for eager in entries:
        if "eager_batch" not in eager:
            continue
        network, cap_gib = eager["network"], eager["cap_gib"]
        tried = {
            entry["times"]: "trained" in entry
            for entry in entries
            if (entry["network"], entry["cap_gib"]) == (network, cap_gib) and "times" in entry
        }
        most = max((times for times, trained in tried.items() if trained), default=0) if tried else None
        rows.append([network, cap_gib, eager["eager_batch"], _short(most)])
    if rows:
        head = ["network", "GiB", "eager's largest batch", "trained by a plan, times as large"]
        yield "## Capacity\n\n" + table(head, rows)


def _broken(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        failures: Sequence[Entry] = document.get("failures", []) if isinstance(document, dict) else []
        for failure in failures:
            yield f"FAILED in {path.stem}: {failure['name']}: {failure['error']}"
        if isinstance(document, dict) and document.get("not_reached"):
            yield f"Not reached in {path.stem}: {', '.join(document['not_reached'])}"


def _short(value: object) -> object:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else value


def _draw(folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cases = {case: entries for case, entries in _by_case(folder).items() if _eager_of(entries)}
    if not cases:
        return
    columns = min(4, len(cases))
    lines = -(-len(cases) // columns)
    figure, axes = plt.subplots(
        lines, columns, squeeze=False, figsize=(4 * columns, 3.2 * lines), layout="constrained"
    )
    for axis, ((network, batch), entries) in zip(axes.flat, cases.items(), strict=False):
        eager = _eager_of(entries)
        for entry in entries:
            peak_nbytes = _peak_nbytes(entry)
            if "time_ns" in entry and peak_nbytes:
                planned = _is_planned(entry)
                axis.plot(
                    peak_nbytes / 2**30,
                    entry["time_ns"] / 1e6,
                    "o" if planned else "x",
                    color="C0" if planned else "C1",
                )
                axis.annotate(
                    _way(entry),
                    (peak_nbytes / 2**30, entry["time_ns"] / 1e6),
                    xytext=(5, 3),
                    textcoords="offset points",
                    fontsize=6,
                )
        # Eager's where the host runs ahead, if that is faster.
        axis.axhline(_eager_ns(eager) / 1e6, linewidth=0.5, color="grey")
        # From zero, for ratios are what counts; and room for what is written beside the points.
        axis.set(
            xlim=(0, 1.2 * axis.get_xlim()[1]),
            ylim=(0, 1.1 * axis.get_ylim()[1]),
            title=f"{network}, batch {batch}",
            xlabel="peak, GiB",
            ylabel="ms an iteration",
        )
    for axis in axes.flat[len(cases) :]:
        axis.set_axis_off()
    figure.savefig(folder / "frontier.svg")
    plt.close(figure)


def _is_planned(entry: Entry) -> bool:
    """Tell our plans, replayed or op by op, from PyTorch's own ways."""
    return bool(entry["way"].startswith(("auto", "vanilla")))


def _eager_of(entries: Sequence[Entry]) -> Entry:
    return next((entry for entry in entries if entry["way"] == "eager" and "time_ns" in entry), {})


if __name__ == "__main__":
    main()
