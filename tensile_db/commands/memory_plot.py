"""A plan's memory over one iteration as a picture: what is held, what is away, eager's course, the budget."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tensile_db.graph import StepGraph
from tensile_db.scheduler.plan import Plan
from tensile_db.scheduler.seeing.away import Away, Steps, away
from tensile_db.scheduler.timeline import Timeline

_MIB = 2**20
#: By a picture's suffix, what leaves its date out.
_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
_HELD, _SWAPPED, _RECOMPUTED, _EAGER, _BUDGET = "tab:blue", "tab:orange", "tab:green", "dimgray", "tab:red"


def draw_plan(
    path: Path,
    *,
    graph: StepGraph,
    plan: Plan,
    timeline: Timeline,
    eager: Timeline,
    budget_nbytes: int | None,
    title: str,
) -> None:
    """Write the picture; the path's suffix is its format.

    eager: the same job without a plan, on its own time.  budget_nbytes: None draws no line.
    """
    # Without pyplot: no display, no state shared with whoever else draws.
    figure = Figure(figsize=(12, 7), layout="constrained")
    memory, lanes = figure.subplots(2, 1, sharex=True, height_ratios=(6, 1))
    _draw_memory(memory, timeline, away(graph, plan, timeline), eager)
    if budget_nbytes is not None:
        memory.axhline(budget_nbytes / _MIB, color=_BUDGET, label="budget")
    memory.set(title=title, ylabel="MiB on the device", ylim=(0, None))
    # Above the axes' content, so that no curve runs through it.
    memory.set_ylim(0, 1.02 * memory.get_ylim()[1])
    memory.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    _draw_lanes(lanes, timeline)
    lanes.set(xlabel="ms of an iteration", xlim=(0, max(timeline.period_ns, eager.period_ns) / 1e6))
    # Without what changes from run to run.
    with mpl.rc_context({"svg.hashsalt": "tensile_db"}):
        figure.savefig(path, dpi=150, metadata=_UNDATED.get(path.suffix.lower()))


def _draw_memory(axes: Axes, timeline: Timeline, absent: Away, eager: Timeline) -> None:
    edges_ns = sorted(
        {at for steps in (timeline.memory, absent.swapped, absent.recomputed) for at, _ in steps}
    )
    edges_ns = [at for at in edges_ns if at < timeline.period_ns]
    ends_ms = np.array([*edges_ns, timeline.period_ns]) / 1e6
    below = np.zeros(len(ends_ms))
    for steps, color, label in (
        (timeline.memory, _HELD, "held"),
        (absent.recomputed, _RECOMPUTED, "released, recomputed later"),
        (absent.swapped, _SWAPPED, "swapped out to the host"),
    ):
        if not any(nbytes for _, nbytes in steps):
            continue
        held = _sampled(steps, edges_ns) / _MIB
        above = below + np.append(held, held[-1:])
        shade = 0.55 if color == _HELD else 0.3
        axes.fill_between(
            ends_ms, below, above, step="post", color=color, alpha=shade, linewidth=0, label=label
        )
        below = above
    eager_ms = [at_ns / 1e6 for at_ns, _ in eager.memory] + [eager.period_ns / 1e6]
    eager_mib = [nbytes / _MIB for _, nbytes in eager.memory]
    axes.step(
        eager_ms,
        [*eager_mib, eager_mib[-1]],
        where="post",
        color=_EAGER,
        linewidth=1,
        linestyle="--",
        label="eager",
    )


def _sampled(steps: Steps, at_ns: Sequence[int]) -> NDArray[np.float64]:
    """Return the value that holds from each of these times on; shape (times,)."""
    times = np.array([at for at, _ in steps])
    values = np.array([nbytes for _, nbytes in steps], dtype=np.float64)
    # Of several steps at one time the last counts.
    return values[np.searchsorted(times, at_ns, side="right") - 1]


def _draw_lanes(axes: Axes, timeline: Timeline) -> None:
    copies = timeline.copies
    lanes: tuple[tuple[str, str, Iterable[tuple[int, int]]], ...] = (
        ("copies in", _SWAPPED, ((c.begin_ns, c.end_ns) for c in copies if not c.to_host)),
        ("copies out", _SWAPPED, ((c.begin_ns, c.end_ns) for c in copies if c.to_host)),
        ("recompute", _RECOMPUTED, ((o.begin_ns, o.end_ns) for o in timeline.ops if o.recompute)),
        ("ops", _HELD, ((o.begin_ns, o.end_ns) for o in timeline.ops if not o.recompute)),
    )
    for row, (_, color, spans) in enumerate(lanes):
        bars = [
            [
                (begin / 1e6, row - 0.4),
                (begin / 1e6, row + 0.4),
                (end / 1e6, row + 0.4),
                (end / 1e6, row - 0.4),
            ]
            for begin, end in spans
        ]
        axes.add_collection(PolyCollection(bars, facecolors=color, linewidths=0))
    axes.set(ylim=(-0.6, len(lanes) - 0.4))
    axes.set_yticks(range(len(lanes)), [name for name, _, _ in lanes])
