"""The memory timeline as a PNG: all jobs over the run, and each job's plan over one iteration."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tensile_db.demo.results import JobResult, Span
from tensile_db.demo.sampling import Sample

_MIB = 2**20
_BUDGET, _EAGER, _HELD = "tab:red", "tab:gray", "tab:blue"


def draw_memory(
    path: Path,
    *,
    samples: Sequence[Sample],
    memory_nbytes: int,
    jobs: Sequence[JobResult],
    timelines: Mapping[int, Sequence[Span]],
) -> None:
    """Write the picture.

    samples: of the whole device while the jobs ran; memory_nbytes: its budget; timelines: by job id.
    """
    # Without pyplot: no display, no state shared with whoever else draws.
    figure = Figure(figsize=(11, 8), layout="constrained")
    grid = figure.add_gridspec(3, len(jobs))
    _draw_device(figure.add_subplot(grid[0:2, :]), samples, memory_nbytes, jobs)
    for column, job in enumerate(jobs):
        _draw_plan(figure.add_subplot(grid[2, column]), job, timelines[job.job_id])
    figure.savefig(path)


def _draw_device(
    axes: Axes, samples: Sequence[Sample], memory_nbytes: int, jobs: Sequence[JobResult]
) -> None:
    seconds = [sample.at_s for sample in samples]
    axes.fill_between(
        seconds, [sample.used_nbytes / _MIB for sample in samples], step="post", color=_HELD, alpha=0.5
    )
    eager = sum(job.vanilla_peak_nbytes for job in jobs)
    axes.axhline(eager / _MIB, color=_EAGER, linestyle="--")
    axes.axhline(memory_nbytes / _MIB, color=_BUDGET)
    axes.text(0, eager / _MIB, " sum of the jobs' eager peaks", va="bottom", color=_EAGER)
    axes.text(0, memory_nbytes / _MIB, " budget of the worker", va="bottom", color=_BUDGET)
    axes.set(
        title=f"{len(jobs)} jobs on one device: memory held, sampled",
        xlabel="seconds",
        ylabel="MiB",
        ylim=(0, 1.12 * max(eager, memory_nbytes) / _MIB),
        xlim=(0, None),
    )


def _draw_plan(axes: Axes, job: JobResult, spans: Sequence[Span]) -> None:
    # The last stretch lasts until the iteration's end.
    edges_ms = [span.at_ns / 1e6 for span in spans] + [span.until_ns / 1e6 for span in spans[-1:]]
    held_mib = [span.nbytes / _MIB for span in (*spans, *spans[-1:])]
    axes.fill_between(edges_ms, held_mib, step="post", color=_HELD, alpha=0.5)
    axes.axhline(job.vanilla_peak_nbytes / _MIB, color=_EAGER, linestyle="--")
    axes.text(0, job.vanilla_peak_nbytes / _MIB, " eager peak", va="bottom", color=_EAGER, fontsize=8)
    axes.set(
        title=f"plan of {job.architecture}",
        xlabel="ms of an iteration",
        ylabel="MiB",
        ylim=(0, 1.15 * job.vanilla_peak_nbytes / _MIB),
    )
    axes.title.set_fontsize(9)
