"""What all choices for a job's gaps together cost, without a plan being made of them.

Copies run in the order that holds as many bytes off the device, at every moment, as any: to the host as they
may begin, back as they are due, the last one first and as late as it can be.  Whole sets of choices are
judged, thousands of them for one plan, so that all of this is done on arrays.

Source: ours; docs/planner/auto.md, "Search".
"""

import numpy as np
from numpy.typing import NDArray

from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.gaps import RECOMPUTE, SWAP, Gaps
from tensile_db.scheduler.choosing.held import Held

#: What a byte above the budget costs if it is there during all ops, in times of its copy.
_ABOVE = 4.0

_START = np.zeros(1, dtype=np.int64)
_Bytes = NDArray[np.float64]


class Course:
    """Judges choices for the gaps of one job within one budget; the device copies both ways at once."""

    def __init__(self, gaps: Gaps, residency: Residency, budget_nbytes: int) -> None:
        """residency: with nothing chosen; it is not kept."""
        self.gaps = gaps
        self._held = Held(gaps, residency)
        self._above_nbytes = (residency.footprint_unheld() - budget_nbytes).astype(np.float64)
        self._begin_ns, self._end_ns = np.array(gaps.begin_ns), np.array(gaps.end_ns)
        self._period_ns = gaps.end_ns[-1]
        self._share = (self._end_ns - self._begin_ns) / self._period_ns
        self._by_release, self._by_return = np.array(gaps.by_release), np.array(gaps.by_return)
        self._release_ns, self._due_ns = np.array(gaps.release_ns), np.array(gaps.due_ns)
        self._out_ns, self._in_ns = np.array(gaps.copy_ns, dtype=np.int64).reshape(-1, 2).T.copy()
        self._wraps = gaps.following >= gaps.ops
        pairs = [(earlier, index) for index, paid_in in enumerate(gaps.paid_in) for earlier in paid_in]
        #: Gaps of which the second leaves without a copy where the first is swapped; shape (pairs,) each.
        self._serving, self._served = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
        #: What its copies can be too late by: all of the time that they take.
        self._longest_ns = np.where(self._wraps, 0, self._out_ns) + self._in_ns
        self._lost_ns = np.array(gaps.lost_ns)
        self._nbytes = gaps.nbytes.astype(np.float64)
        self._recompute_ns = np.array([0 if each is None else each.time_ns for each in gaps.candidates])
        self._beyond_nbytes = np.array(
            [0.0 if each is None else each.beyond_nbytes for each in gaps.candidates]
        )
        #: The time that the link takes for a byte, the slower way.
        copies_ns_per_byte = np.maximum(self._out_ns, self._in_ns) / np.maximum(self._nbytes, 1)
        self._ns_per_byte = float(copies_ns_per_byte.max(initial=0.0))

    def of(self, chosen: NDArray[np.int64]) -> tuple[float, NDArray[np.int64]]:
        """Return what choices cost, ns, and the positions at which they leave memory short.

        chosen: STAY, SWAP or RECOMPUTE for each gap, shape (gaps,).  They cost the time of recomputations,
        what copies take of the ops' time, how much too late they are, and copies of what is above the budget.
        """
        held: list[NDArray[np.int64]] = []
        held_nbytes: list[_Bytes] = []
        if self._held:
            chosen, held, held_nbytes = self._held.settled(chosen)
        swaps_ns, positions, nbytes = self._swaps(chosen)
        recomputed = (chosen == RECOMPUTE).nonzero()[0]
        following, beyond_nbytes = self.gaps.following[recomputed], self._beyond_nbytes[recomputed]
        freed_nbytes = self._nbytes[recomputed]
        positions += [self.gaps.previous[recomputed] + 1, following, following + 1, *held]
        nbytes += [-freed_nbytes, freed_nbytes + beyond_nbytes, -beyond_nbytes, *held_nbytes]
        steps = np.bincount(np.concatenate(positions), np.concatenate(nbytes), self.gaps.ops + 2)
        above_nbytes = np.maximum(self._above_nbytes + steps.cumsum()[:-2], 0.0)
        short_nbytes = float(above_nbytes.max()) + _ABOVE * float(above_nbytes @ self._share)
        recomputed_ns = int(self._recompute_ns[recomputed].sum())
        return swaps_ns + recomputed_ns + short_nbytes * self._ns_per_byte, above_nbytes.nonzero()[0]

    def _swaps(self, chosen: NDArray[np.int64]) -> tuple[int, list[NDArray[np.int64]], list[_Bytes]]:
        """Return what the swaps cost, and from which positions on the device holds more or less, in bytes."""
        copied = chosen == SWAP
        if not copied.any():
            return 0, [], []
        copied[self._served[copied[self._serving]]] = False
        left_ns = self._release_ns.copy()
        # Each copy begins when it may and the one before has ended.
        leaving = self._by_release[copied[self._by_release]]
        out_ns = self._out_ns[leaving]
        work_ns = out_ns.cumsum()
        left_ns[leaving] = work_ns + np.maximum.accumulate(self._release_ns[leaving] - work_ns + out_ns)
        # Across iterations the copies to the host end with the iteration.
        late_ns = max(0, int(left_ns[leaving[-1]]) - self._period_ns)
        returning = self._by_return[chosen[self._by_return] == SWAP]
        in_ns, left_ns, wraps = self._in_ns[returning], left_ns[returning], self._wraps[returning]
        work_ns = in_ns.cumsum()
        back_ns = np.minimum.accumulate(self._due_ns[returning] + work_ns - in_ns) - work_ns
        early_ns = np.maximum(np.where(wraps, 0, left_ns) - back_ns, 0)
        late_ns += int(np.minimum(early_ns, self._longest_ns[returning]).sum())
        begin = self._begin_ns.searchsorted(left_ns)
        end = self._end_ns.searchsorted(back_ns, side="right")
        nbytes = np.where(wraps | (begin < end), self._nbytes[returning], 0.0)
        start_nbytes = nbytes[wraps].sum(keepdims=True)
        cost_ns = late_ns + int(self._lost_ns[returning].sum())
        return cost_ns, [begin, end, _START], [-nbytes, nbytes, -start_nbytes]
