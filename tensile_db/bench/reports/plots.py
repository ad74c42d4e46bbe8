"""The benchmarks' pictures, as SVG: equal results give equal files."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tensile_db.bench.networks.workloads import title_of
from tensile_db.bench.reports.plan_time import made_by

#: One colour a policy, in every picture.
_COLORS: Mapping[str, str] = {
    "vanilla": "dimgray",
    "vdnn_conv": "tab:brown",
    "vdnn_all": "tab:olive",
    "checkpoint": "tab:cyan",
    "checkpoint_articulation": "tab:pink",
    "superneurons": "tab:purple",
    "superneurons_memory": "mediumpurple",
    "capuchin": "tab:orange",
    "tsplit": "tab:green",
    "tensile": "tab:blue",
    "auto": "tab:red",
    "auto_exact": "lightcoral",
    "auto_split": "darkred",
}
#: Of policies of one's own, by their names.
_OTHER_COLORS = ("black", "goldenrod", "teal", "magenta", "navy", "lime")


def save(figure: Figure, path: Path) -> None:
    """Write the picture without what changes from run to run."""
    with mpl.rc_context({"svg.hashsalt": "tensile_db", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def grid(count: int, *, width: float = 5.0, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many axes, three in a row."""
    columns = min(3, count)
    rows = -(-count // columns)
    # Without pyplot: no display, no state shared with whoever else draws.
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, index + 1) for index in range(count)]
    return figure, axes


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Name once, beside the axes, what any of them shows."""
    shown: dict[str, Any] = {}
    for each in axes:
        handles, labels = each.get_legend_handles_labels()
        shown.update(zip(labels, handles, strict=True))
    if shown:
        figure.legend(
            list(shown.values()), list(shown), loc="outside right upper", fontsize="small", frameon=False
        )


def color(policy: str) -> str:
    """Return a policy's colour."""
    other = zlib.crc32(policy.encode()) % len(_OTHER_COLORS)
    return _COLORS.get(policy, _OTHER_COLORS[other])


def draw_single(document: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """Draw MSR against EOR, and memory over time; return the files."""
    networks = document["networks"]
    frontier, axes = grid(len(networks))
    for each, network in zip(axes, networks, strict=True):
        _draw_frontier(each, network)
    legend(frontier, axes)
    timelines, axes = grid(len(networks))
    for each, network in zip(axes, networks, strict=True):
        _draw_timelines(each, network)
    legend(timelines, axes)
    files = [folder / f"{stem}_frontier.svg", folder / f"{stem}_memory.svg"]
    for figure, path in zip((frontier, timelines), files, strict=True):
        save(figure, path)
    return files


def draw_scale(document: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """Draw MSR, EOR and CBR against the number of jobs, a row of axes for each network; return the file."""
    networks = document["workload"]["networks"]
    figure, axes = grid(3 * len(networks), height=2.8)
    for row, network in enumerate(networks):
        for column, rate in enumerate(("msr", "eor", "cbr")):
            each = axes[3 * row + column]
            for policy in dict.fromkeys(made["policy"] for made in document["rows"]):
                points = [
                    (made["jobs"], made["best"][rate])
                    for made in document["rows"]
                    if (made["network"], made["policy"]) == (network, policy) and made["best"]
                ]
                if points and policy != "vanilla":
                    each.plot(*_columns(points), marker="o", markersize=3, color=color(policy), label=policy)
            each.set(title=title_of(network), xlabel="jobs", ylabel=rate.upper())
    legend(figure, axes)
    save(figure, folder / f"{stem}.svg")
    return [folder / f"{stem}.svg"]


def draw_batch(document: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """Draw CBR, or samples a second, against the batch; return the file."""
    networks = document["workload"]["networks"]
    in_memory = document["within"] == "memory"
    figure, axes = grid(len(networks))
    for each, network in zip(axes, networks, strict=True):
        for policy in dict.fromkeys(row["policy"] for row in document["rows"]):
            rows = [row for row in document["rows"] if (row["network"], row["policy"]) == (network, policy)]
            found = [
                (
                    row["batch"],
                    row["point"].get("samples_per_s") if in_memory else (row["best"] or {}).get("cbr"),
                )
                for row in rows
            ]
            points = [(size, value) for size, value in found if value]
            if points:
                each.plot(*_columns(points), marker="o", markersize=3, color=color(policy), label=policy)
        each.set(title=title_of(network), xlabel="batch", ylabel="samples/s" if in_memory else "best CBR")
        each.set_xscale("log", base=2)
    legend(figure, axes)
    save(figure, folder / f"{stem}.svg")
    return [folder / f"{stem}.svg"]


def draw_plan_time(document: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """Draw seconds and memory against ops; return the file."""
    figure, axes = grid(2)
    for each, key, unit, label in (
        (axes[0], "seconds", 1, "seconds"),
        (axes[1], "memory_nbytes", 2**30, "GiB"),
    ):
        for name, policy in {made_by(row): row["policy"] for row in document["curve"]}.items():
            points = [
                (row["ops"], row[key] / unit)
                for row in document["curve"]
                # What is too small to be measured has no place on a logarithmic axis.
                if made_by(row) == name and row.get(key)
            ]
            if points:
                line = "-" if name == policy else "--"
                each.plot(*_columns(points), line, marker="o", markersize=3, color=color(policy), label=name)
                each.set(xscale="log", yscale="log")
        each.set(xlabel="ops", ylabel=label)
    legend(figure, axes)
    save(figure, folder / f"{stem}.svg")
    return [folder / f"{stem}.svg"]


def draw_mixed(document: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """Draw MSR against EOR of the jobs together; return the file."""
    figure, (axes,) = grid(1)
    for row in document["rows"]:
        points = sorted((p["msr"], p["eor"]) for p in row["points"] if "eor" in p)
        if points:
            axes.plot(
                *_columns(points), marker="o", markersize=3, color=color(row["policy"]), label=row["policy"]
            )
    axes.set(title="five networks together", xlabel="MSR", ylabel="EOR")
    legend(figure, [axes])
    save(figure, folder / f"{stem}.svg")
    return [folder / f"{stem}.svg"]


def _draw_frontier(axes: Axes, network: dict[str, Any]) -> None:
    for policy, found in network["policies"].items():
        points = sorted((p["msr"], p["eor"]) for p in found["points"] if "eor" in p)
        if points:
            axes.plot(*_columns(points), marker="o", markersize=3, color=color(policy), label=policy)
    if "bound" in network:
        points = sorted((point["msr"], point["eor"]) for point in network["bound"])
        axes.plot(*_columns(points), linestyle="--", color="black", label="lower bound")
    # Plans that are slower still are of no use to anybody.
    axes.set(title=title_of(network["network"]), xlabel="MSR", ylabel="EOR", ylim=(0.97, 2.5))


def _draw_timelines(axes: Axes, network: dict[str, Any]) -> None:
    for policy, course in network["timelines"].items():
        label = "eager" if policy == "vanilla" else f"{policy}, half of eager's peak"
        axes.step(*_columns(course), where="post", color=color(policy), linewidth=0.9, label=label)
    axes.set(title=title_of(network["network"]), xlabel="ms", ylabel="MiB", ylim=(0, None))


def _columns(points: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]
