"""Which parameters and buffers of a network lie in the same memory: here each has memory of its own.

One tensor that several modules have is one.  Two tensors, one a view of the other, would be trained apart.

Source: ours.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import fx, nn

from tensile_db.capture.networks.own_errors import named
from tensile_db.capture.storages import storage_key, written_by
from tensile_db.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies; addresses are in bytes, and of one process."""

    begin: int
    end: int
    name: str
    tensor: torch.Tensor

    def marked_in(self, marks: np.ndarray, first: int) -> np.ndarray:
        """Return the view of this tensor's bytes of `marks`, one for each from address `first`."""
        size = self.tensor.itemsize
        return np.lib.stride_tricks.as_strided(
            marks[self.begin - first :],
            shape=(*self.tensor.shape, size),
            strides=(*(step * size for step in self.tensor.stride()), 1),
        )


def require_separate_parameters(model: nn.Module, architecture: str | None) -> None:
    """Raise InvalidRequest where a parameter shares memory with another tensor, or with itself."""
    parameters = {name for name, _ in model.named_parameters()}
    for before, name in _sharing(model):
        if before == name and name in parameters:
            raise InvalidRequest(
                f"{named(architecture)} has several elements of {name} in the same memory,"
                " which no optimizer can update",
                hint="Let the parameter have one of each, and expand it in forward().",
            )
        if before in parameters or name in parameters:
            raise InvalidRequest(
                f"{named(architecture)} has {before} and {name} in the same memory,"
                " and they would be trained apart",
                hint="Let modules share the parameter itself, or copy its values: .detach().clone().",
            )


def require_separate_writes(
    module: fx.GraphModule, state: Mapping[str, fx.Node], model: nn.Module, architecture: str | None
) -> None:
    """Raise InvalidRequest where a trace writes into a buffer that shares memory with another.

    state: the trace's placeholders, by the names of state.py.
    """
    sharing = list(_sharing(model))
    if not sharing:
        return
    written = {storage_key(value) for node in module.graph.nodes for value in written_by(node)}
    for before, name in sharing:
        changed = [
            each for each in (before, name) if storage_key(state[f"buffer/{each}"].meta["val"]) in written
        ]
        if changed:
            raise InvalidRequest(
                f"{named(architecture)} changes {changed[0]}, and has {before} and {name} in the same memory",
                hint="Let modules share the buffer itself, or copy its values: .clone().",
            )


def _sharing(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the names of each two parameters and buffers with a byte in common; of one with itself, twice."""
    places = sorted(_places(model), key=lambda place: (place.begin, place.end))
    for index, place in enumerate(places):
        if _overlaps_itself(place):
            yield place.name, place.name
        for other in places[index + 1 :]:
            if other.begin >= place.end:
                break
            if _overlap(place, other):
                yield place.name, other.name


def _places(model: nn.Module) -> Iterator[_Place]:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        # What has no elements, or no memory, shares none.
        if tensor.layout != torch.strided or not tensor.numel() or not tensor.untyped_storage().data_ptr():
            continue
        begin = tensor.data_ptr()
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = begin + sum((count - 1) * step for count, step in steps) * tensor.itemsize
        yield _Place(begin, last + tensor.itemsize, name, tensor)


def _overlap(place: _Place, other: _Place) -> bool:
    marks = np.zeros(max(place.end, other.end) - place.begin, dtype=bool)
    place.marked_in(marks, place.begin)[...] = True
    return bool(other.marked_in(marks, place.begin).any())


def _overlaps_itself(place: _Place) -> bool:
    # Where each dimension steps over all that the smaller ones reach, it does not.
    reach = 1
    for step, count in sorted(zip(place.tensor.stride(), place.tensor.shape, strict=True)):
        if count > 1:
            if step < reach:
                break
            reach = (count - 1) * step + reach
    else:
        return False
    marks = np.zeros(place.end - place.begin, dtype=bool)
    place.marked_in(marks, place.begin)[...] = True
    return int(marks.sum()) < place.tensor.numel() * place.tensor.itemsize
