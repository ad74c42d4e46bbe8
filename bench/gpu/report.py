"""What a run came to: the goals beside what was measured, and time against peak as a picture.

    python -m bench.gpu.report [FOLDER]

Reads whatever sections left in FOLDER, whole or not, and writes report.md and frontier.svg beside them.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.gpu.frontier import draw
from bench.gpu.measured import (
    Entry,
    beyond,
    by_case,
    eager_time_ns,
    entries_of,
    ratios_of,
    read,
    verdict_of,
    way_of,
)
from bench.results import RESULTS, table

#: Of replayed iterations: what is told of each, by name in the results and in the table.
_REPLAYED = {
    "replayed": "replayed",
    "equal": "equal",
    "held_nbytes": "held",
    "passages": "passages",
    "joined": "joined",
    "reason": "why not",
}


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
        draw(folder)
    except ImportError:
        text += "\n(no picture: there is no matplotlib here)\n"
    return text


def _machine(folder: Path) -> Iterator[str]:
    document = read(folder, "device")
    if document:
        device, spec = document.get("device", {}), document.get("spec", {})
        yield f"{device.get('name')}, driver {device.get('driver')}, {json.dumps(document.get('versions'))}"
        yield "Measured: " + json.dumps(spec)
        for entry in entries_of(folder, "device"):
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
    entries = entries_of(folder, "correctness")
    if entries:
        keys = ["network", "policy", "equal", "differing", "of", "eager_differs_from_itself", "swap_ins"]
        keys.append("recomputed_ops")
        yield "## Bits equal to eager's\n\n" + table(
            keys, [[entry[key] for key in keys] for entry in entries]
        )


def _replay(folder: Path) -> Iterator[str]:
    rows: list[list[object]] = []
    eager_ns = 0
    entries = entries_of(folder, "replay")
    # Older runs knew nothing of joined updates.
    keys = [key for key in _REPLAYED if key != "joined" or any("joined" in entry for entry in entries)]
    for entry in entries:
        if entry["way"] == "eager":
            eager_ns = eager_time_ns(entry)
        if "time_ns" in entry:
            which = [entry["network"], entry["batch"], entry["optimizer"], way_of(entry)]
            ms, ratio = f"{entry['time_ns'] / 1e6:.2f}", f"{entry['time_ns'] / eager_ns:.3f}"
            rows.append([*which, ms, ratio, *(entry.get(key, "") for key in keys)])
    if rows:
        head = ["network", "batch", "optimizer", "way", "ms", "time/eager"]
        yield "## Replayed iterations\n\n" + table([*head, *(_REPLAYED[key] for key in keys)], rows)


def _product(folder: Path) -> Iterator[str]:
    document = read(folder, "product")
    if "not_run" in document:
        yield f"## From SQL\n\nNot run: {document['not_run']}"
    keys = ["within", "attempt", "equal", "differing", "of", "eager_differs_from_itself"]
    rows: list[list[object]] = []
    for entry in entries_of(folder, "product"):
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
    for entry in entries_of(folder, "product"):
        if "as_eager" in entry:
            yield f"{entry['way']}: {entry['as_eager']} of {entry['rows']} rows as eager predicts them"


def _single(folder: Path) -> Iterator[str]:
    rows = []
    for (network, batch), entries in by_case(folder).items():
        ways = {entry["way"]: entry for entry in entries if "share" not in entry}
        eager = ways.get("eager")
        if eager is None:
            continue
        rows += [
            [
                network,
                batch,
                way_of(entry),
                *ratios_of(entry, eager),
                *beyond(entry),
                verdict_of(entry, eager),
            ]
            for entry in entries
            if "time_ns" in entry
        ]
    if rows:
        head = ["network", "batch", "way", "ms", "time/eager", "peak/eager", "peak/budget", "reserved/peak"]
        head += ["bound/time", "goal"]
        how = f", in {precision}" if (precision := read(folder, "single").get("precision")) else ""
        yield f"## One job{how}\n\n" + table(head, rows)


def _jobs(folder: Path) -> Iterator[str]:
    entries = entries_of(folder, "jobs")
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
    entries = [entry for entry in entries_of(folder, "formats") if "time_ns" in entry]
    eager = {(e["precision"], e["memory_format"]): e for e in entries if e["way"] == "eager"}
    plain = eager.get(("float32", "contiguous"))
    rows = []
    for entry in entries:
        alike = eager.get((entry["precision"], entry["memory_format"]))
        if alike is not None:
            ms, over_eager, peak_over_eager, _ = ratios_of(entry, alike)
            over_plain = "" if plain is None else ratios_of(entry, plain)[1]
            known = [entry["precision"], entry["memory_format"], way_of(entry)]
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
    entries = entries_of(folder, "capacity")
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
    """Return a value as a table has it."""
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
