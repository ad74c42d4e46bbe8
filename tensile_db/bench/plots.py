"""The benchmarks' pictures, as SVG: equal results give equal files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tensile_db.bench.workloads import WORKLOADS

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
}


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


def color(policy: str) -> str:
    """Return a policy's colour."""
    return _COLORS.get(policy, "black")


def draw_single(document: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """Draw MSR against EOR, and memory over time; return the files."""
    networks = document["networks"]
    frontier, axes = grid(len(networks))
    for each, network in zip(axes, networks, strict=True):
        _draw_frontier(each, network)
    axes[0].legend(fontsize="x-small", frameon=False)
    timelines, axes = grid(len(networks))
    for each, network in zip(axes, networks, strict=True):
        _draw_timelines(each, network)
    axes[0].legend(fontsize="x-small", frameon=False)
    files = [folder / f"{stem}_frontier.svg", folder / f"{stem}_memory.svg"]
    for figure, path in zip((frontier, timelines), files, strict=True):
        save(figure, path)
    return files


def _draw_frontier(axes: Axes, network: dict[str, Any]) -> None:
    for policy, found in network["policies"].items():
        points = sorted((p["msr"], p["eor"]) for p in found["points"] if "eor" in p)
        if points:
            axes.plot(*_columns(points), marker="o", markersize=3, color=color(policy), label=policy)
    if "bound" in network:
        points = sorted((point["msr"], point["eor"]) for point in network["bound"])
        axes.plot(*_columns(points), linestyle="--", color="black", label="lower bound")
    # Plans that are slower still are of no use to anybody.
    axes.set(title=WORKLOADS[network["network"]].title, xlabel="MSR", ylabel="EOR", ylim=(0.97, 2.5))


def _draw_timelines(axes: Axes, network: dict[str, Any]) -> None:
    for policy, course in network["timelines"].items():
        label = "eager" if policy == "vanilla" else f"{policy}, half of eager's peak"
        axes.step(*_columns(course), where="post", color=color(policy), linewidth=0.9, label=label)
    axes.set(title=WORKLOADS[network["network"]].title, xlabel="ms", ylabel="MiB", ylim=(0, None))


def _columns(points: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]
