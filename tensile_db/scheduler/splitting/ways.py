"""The ways in which an op can be split, and where its parts begin and end.

Source: TSPLIT section V-A (sTensor configuration: dimension and number of parts).
"""

from collections.abc import Sequence
from itertools import pairwise
from math import lcm

from tensile_db.graph import Axis, Op, Splitting, StepGraph
from tensile_db.scheduler.plan import Split


def find_splitting(op: Op, axis: Axis) -> Splitting | None:
    """Return how an op is split along an axis, or None where it cannot be."""
    return next((splitting for splitting in op.splittings if splitting.axis is axis), None)


def keep_bits(graph: StepGraph, splits: Sequence[Split]) -> bool:
    """Return whether the splits give bit for bit what whole ops give."""
    found = (find_splitting(graph.ops[op], split.axis) for split in splits for op in split.ops)
    return all(splitting is not None and splitting.keeps_bits for splitting in found)


def part_ranges(graph: StepGraph, split: Split) -> tuple[tuple[int, int], ...]:
    """Return the half-open range of each part of a split; fewer parts where there are not so many units."""
    found = [find_splitting(graph.ops[op], split.axis) for op in split.ops]
    splittings = [splitting for splitting in found if splitting is not None]
    assert len(splittings) == len(split.ops), "every op of a split can be split along its axis"
    extents = {splitting.extent for splitting in splittings}
    assert len(extents) == 1, "the ops of a split have one extent"
    (extent,) = extents
    unit = lcm(*(splitting.unit for splitting in splittings))
    units = max(1, extent // unit)
    parts = min(split.parts, units)
    bounds = [units * part // parts * unit for part in range(parts)] + [extent]
    return tuple(pairwise(bounds))
