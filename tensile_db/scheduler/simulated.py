"""What a simulation of a plan has seen (`simulation.py`), as it was noted down on the way."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import TensorId


@dataclass(slots=True, kw_only=True)
class Course:
    """What a simulation has seen; times are ns from the first iteration's start."""

    #: The last iteration: [begin_ns, end_ns).
    begin_ns: int
    end_ns: int
    #: When the first iteration ended.
    first_ns: int
    #: Op, begin, end, whether it is a recomputation, of each run of the last iteration, in order; flat.
    runs: list[int]
    #: Tensor, whether to the host, begin, end, of each copy of the last iteration.
    moves: list[tuple[TensorId, bool, int, int]]
    #: Per copy as listed, the delay after its trigger, waits sat out.
    delays_ns: list[int]
    #: Whether all iterations are alike, from the first one on.
    steady: bool
    #: When the bytes held change, and by how much, in all iterations; flat.  The first one is
    #: the start.
    steps: list[int]

    def held(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when the bytes held change, ascending, and what is held from then on; shape (steps,)."""
        at_ns, change_nbytes = np.array(self.steps, dtype=np.int64).reshape(-1, 2).T.copy()
        # What is freed at an instant makes room for what is allocated at the same instant: half-open
        # intervals.
        order = np.lexsort((change_nbytes[1:], at_ns[1:])) + 1
        at_ns[1:], change_nbytes[1:] = at_ns[order], change_nbytes[order]
        return at_ns, np.cumsum(change_nbytes)
