"""Swaps that keep step with layers: a copy runs beside one layer, and the next layer waits for it.

Source: vDNN and SuperNeurons, as Capuchin sections 3.1 and 5.3 describe them: the copy of what a layer reads
is started with the layer, the next layer starts when both have ended, and a layer's backward pass copies
back what the layer before needs.
Differs:
- A tensor that is being copied is not read here, so the copy starts when its last reader in the forward pass
  has ended. It runs beside the ops after that one up to and including the next convolution, which is one
  layer's work, and the op after that convolution waits.
- A copy back is awaited where the tensor is first read; the papers wait at the layer's start.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.layers import Layers
from tensile_db.scheduler.analysis.residency import Absence, Residency


def swap_with_layers(residency: Residency, layers: Layers, tensors: Sequence[TensorId]) -> None:
    """Swap tensors from their last use in the forward pass to the next one.

    A tensor that would have to be on its way back before it is away stays.
    """
    possible = (_absence(residency, layers, tensor) for tensor in tensors)
    absences = [absence for absence in possible if absence is not None]
    # Of the copies that a layer starts, those needed first come first: a plan lists them by their delay.
    triggered: dict[int, int] = {}
    for absence in sorted(absences, key=lambda absence: (absence.gap.following, absence.tensor)):
        rank = triggered[absence.end] = triggered.get(absence.end, -1) + 1
        residency.add(replace(absence, in_delta_ns=rank))


def _absence(residency: Residency, layers: Layers, tensor: TensorId) -> Absence | None:
    previous = layers.last_forward(tensor)
    if previous is None:
        return None
    gap = residency.gap_at(tensor, previous + 1)
    if gap is None or gap.wraps or gap.following < layers.backward_begin:
        return None
    begin, end = _layer_after(layers, previous), _layer_before(layers, gap.following)
    return Absence(gap=gap, begin=begin, end=end, out_position=gap.previous) if begin < end else None


def _layer_after(layers: Layers, position: int) -> int:
    """Return the op that waits for a copy started at the end of the op at `position`."""
    following = bisect_right(layers.convolutions, position)
    if following < len(layers.convolutions):
        return layers.convolutions[following] + 1
    return max(position + 1, layers.classifier_begin)


def _layer_before(layers: Layers, position: int) -> int:
    """Return the first op of the backward layer before the one that `position` is in."""
    ends = layers.convolutions_backward
    ended = bisect_left(ends, position)
    return ends[ended - 2] + 1 if ended >= 2 else layers.backward_begin
