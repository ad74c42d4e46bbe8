"""The picture of `bench sharing`: how the completion times of the trace's jobs are distributed.

Source: Salus figure 8.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensile_db.bench.reports.papers import SALUS_2
from tensile_db.bench.reports.plots import grid, legend, save

#: One colour a policy; `auto` and `fair` may coincide, so that one is dashed.
_STYLES: Mapping[str, Mapping[str, Any]] = {
    "auto": {"color": "tab:red", "linewidth": 2.4},
    "fair": {"color": "tab:green", "linestyle": "--"},
    "fifo": {"color": "dimgray"},
    "pack": {"color": "tab:orange"},
    "srtf": {"color": "tab:blue"},
}


def draw_completions(document: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """Draw the part of the jobs that are done within a time after their coming; return the file."""
    figure, (axes,) = grid(1, width=7.5)
    for row in document["trace"]:
        name = row["sharing"]
        minutes, parts = zip(*distribution([second / 60 for second in row["completions_s"]]), strict=True)
        axes.step(minutes, parts, where="post", label=name, **_STYLES.get(name, {}))
        if name in SALUS_2:
            # The one point of each of the paper's curves that it states.
            axes.plot(
                [SALUS_2[name][3]],
                [0.95],
                linestyle="",
                marker="o",
                fillstyle="none",
                color=_STYLES[name]["color"],
                label=f"Salus, {name}: 95 %",
            )
    axes.set(xlabel="JCT in minutes", ylabel="jobs", xlim=(0, None), ylim=(0, 1.02))
    legend(figure, [axes])
    path = folder / f"{stem}.svg"
    save(figure, path)
    return [path]


def distribution(times: Sequence[float]) -> list[tuple[float, float]]:
    """Return (time, the part of the times up to it), by time, from (0, 0) on."""
    ordered = sorted(times)
    return [(0.0, 0.0), *((time, (n + 1) / len(ordered)) for n, time in enumerate(ordered))]
