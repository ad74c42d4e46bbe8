"""Time against peak, as a picture: our plans beside PyTorch's own ways."""

from collections.abc import Sequence
from pathlib import Path

from bench.gpu.measured import Entry, by_case, eager_time_ns, peak_nbytes_of, way_of


def draw(folder: Path) -> None:
    """Write frontier.svg, unless nothing was compared.  Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cases = {case: entries for case, entries in by_case(folder).items() if _eager_of(entries)}
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
            peak_nbytes = peak_nbytes_of(entry)
            if "time_ns" in entry and peak_nbytes:
                planned = is_planned(entry)
                axis.plot(
                    peak_nbytes / 2**30,
                    entry["time_ns"] / 1e6,
                    "o" if planned else "x",
                    color="C0" if planned else "C1",
                )
                axis.annotate(
                    way_of(entry),
                    (peak_nbytes / 2**30, entry["time_ns"] / 1e6),
                    xytext=(5, 3),
                    textcoords="offset points",
                    fontsize=6,
                )
        # Eager's where the host runs ahead, if that is faster.
        axis.axhline(eager_time_ns(eager) / 1e6, linewidth=0.5, color="grey")
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


def is_planned(entry: Entry) -> bool:
    """Tell our plans, replayed or op by op, from PyTorch's own ways."""
    return bool(entry["way"].startswith(("auto", "vanilla")))


def _eager_of(entries: Sequence[Entry]) -> Entry:
    return next((entry for entry in entries if entry["way"] == "eager" and "time_ns" in entry), {})
