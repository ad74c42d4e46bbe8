"""Stretches of ops for which tensors are away, so laid out that all of them are looked through at once.

A deep network has tens of thousands of them, and a planner asks at thousands of ops who is away there.

Source: ours.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import TensorId

_FIRST_ROOM = 64


class Stretches:
    """Half-open stretches [begin, end) of positions, one for each tensor and beginning of a gap."""

    def __init__(self) -> None:
        self._place: dict[tuple[TensorId, int], int] = {}
        #: Rows tensor, begin, end; shape (3, room), of which the first len(_place) columns count.
        self._rows: NDArray[np.int64] = np.zeros((3, _FIRST_ROOM), dtype=np.int64)
        #: What was put since they were last looked through: most are put again before anybody looks.
        self._fresh: dict[tuple[TensorId, int], tuple[int, int]] = {}

    def copy(self) -> "Stretches":
        """Return the same stretches, to put others there."""
        other = Stretches()
        other._place, other._rows, other._fresh = dict(self._place), self._rows.copy(), dict(self._fresh)
        return other

    def put(self, key: tuple[TensorId, int], begin: int, end: int) -> None:
        """Let a tensor be away for the positions [begin, end) in the gap from key[1] on; may be none."""
        self._fresh[key] = begin, end

    def covering(self, *positions: int) -> Iterator[NDArray[np.int64]]:
        """Yield for each position the tensors that are away there."""
        self._lay_out()
        tensors, begins, ends = self._rows[:, : len(self._place)]
        for position in positions:
            yield tensors[(begins <= position) & (position < ends)]

    def _lay_out(self) -> None:
        for (tensor, previous), (begin, end) in self._fresh.items():
            place = self._place.setdefault((tensor, previous), len(self._place))
            if place == self._rows.shape[1]:
                self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)), axis=1)
            self._rows[:, place] = (tensor, begin, end)
        self._fresh.clear()
