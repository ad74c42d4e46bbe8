"""How long each source is held: until the last chosen recomputation that reads it.

Source: ours; docs/planner/auto.md, "Search".
"""

import numpy as np
from numpy.typing import NDArray

from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.gaps import RECOMPUTE, STAY, Gaps


class Held:
    """The sources of one job in one order (`sources.py`); arrays are of shape (sources,)."""

    def __init__(self, gaps: Gaps, residency: Residency) -> None:
        """residency: with nothing chosen, and the sources held for all that might be."""
        sources = list(residency.held_until)
        place = {tensor: index for index, tensor in enumerate(sources)}
        tensors, last = residency.graph.tensors, residency.table.last
        self._following = gaps.following
        self._last = np.array([last[tensor] for tensor in sources], dtype=np.int64)
        self._nbytes = np.array([tensors[tensor].nbytes for tensor in sources], dtype=np.float64)
        readings = [
            (index, place[tensor])
            for index, candidate in enumerate(gaps.candidates)
            if candidate is not None
            for tensor in candidate.chain.inputs
            if tensor in place
        ]
        #: Gaps whose recomputation reads a source, and which; shape (readings,) each.
        self._reading, self._read = np.array(readings, dtype=np.int64).reshape(-1, 2).T.copy()
        beyond = [
            (index, place[gap.tensor])
            for index, gap in enumerate(gaps.all)
            if gap.tensor in place and gap.following > last[gap.tensor]
        ]
        #: Gaps that end after a source's last access, and of which it is; shape (gaps beyond,) each.
        self._beyond, self._of = np.array(beyond, dtype=np.int64).reshape(-1, 2).T.copy()

    def __bool__(self) -> bool:
        return bool(len(self._last))

    def until(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions until which sources are held, the last access of those that nothing reads.

        chosen: STAY, SWAP or RECOMPUTE, shape (gaps,).
        """
        until = self._last.copy()
        reads = chosen[self._reading] == RECOMPUTE
        np.maximum.at(until, self._read[reads], self._following[self._reading[reads]])
        return until

    def settled(
        self, chosen: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], list[NDArray[np.int64]], list[NDArray[np.float64]]]:
        """Return what is chosen for sources while they are held, and how they are held.

        That is from which positions on the device holds more or less than if nothing were held, in bytes.
        """
        until = self.until(chosen)
        void = self._beyond[self._following[self._beyond] > until[self._of]]
        if chosen[void].any():
            chosen = chosen.copy()
            chosen[void] = STAY
        return chosen, [self._last + 1, until + 1], [self._nbytes, -self._nbytes]
