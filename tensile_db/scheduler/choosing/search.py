"""Better choices by local search.

Greedy choices book each copy where there is room when its turn comes, so that what was chosen first may keep
from its place what has no other.  Here a choice is made for all gaps, and then the copies are put in order:
to the host as they may begin, back as they are due, the last one first and as late as it can be.  No other
order has more bytes off the device at any moment.  What remains is to choose, and that is done by changing
some large choice of the best found so far, then small ones for as long as that seems to lead somewhere.

Source: ours; docs/planner/auto.md, "Search".  Iterated local search (Lourenco, Martin and Stuetzle, 2003)
whose descent is simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983).
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tensile_db.scheduler.choosing.course import Course
from tensile_db.scheduler.choosing.gaps import RECOMPUTE, STAY, SWAP

#: Choices looked at for each gap in each search; of few gaps fewer, for there are fewer choices by far.
_LOOKS = 20
_FEW_GAPS = 8
#: A look takes time by the gaps and the ops; a search makes no more than come to so many of both in all,
#: which took 5 to 10 s of a core.
_MOST = 400_000_000
#: Choices that are looked at from one change of a large one to the next.
_DESCENT = 75
#: So many of the largest gaps are changed, up to so many at once.
_LARGE = 24
_AT_ONCE = 3
#: How much longer than before a choice may take and still be gone on from, at first and at last, as shares of
#: the ops' time.
_WARM, _COLD = 6e-4, 1e-5
#: How often two small choices change at once.
_PAIRS = 0.4
#: What else may be chosen; recomputation, where it may be, comes last.
_OTHERS = {STAY: (SWAP, RECOMPUTE), SWAP: (STAY, RECOMPUTE), RECOMPUTE: (STAY, SWAP)}

#: What is chosen for each gap, shape (gaps,).
_Chosen = NDArray[np.int64]


def search(course: Course, start: Sequence[int], seeds: Sequence[int], *, one_in: int = 1) -> list[int]:
    """Return the choices that take the least time of those found; equal inputs give equal ones.

    start: choices to begin with, shape (gaps,).  seeds: of as many searches, for one may well end where no
    small change helps.  one_in: of a whole search's looks, one in so many is made.
    """
    if not course.gaps.all:
        return list(start)
    begin = np.array(start, dtype=np.int64)
    found = [_Search(course, seed).best_from(begin, one_in) for seed in seeds]
    best: list[int] = min(found, key=lambda chosen: course.of(chosen)[0]).tolist()
    return best


def descend(course: Course, start: Sequence[int]) -> tuple[list[int], float]:
    """Return the best choices of one descent, in a hundredth of a search's time, and what they cost, ns."""
    chosen = np.array(start, dtype=np.int64)
    if not course.gaps.all:
        return [], course.of(chosen)[0]
    best, cost_ns = _Search(course, 0).descend(chosen, set())
    return best.tolist(), cost_ns


class _Search:
    def __init__(self, course: Course, seed: int) -> None:
        self._gaps = gaps = course.gaps
        self._course = course
        self._period_ns = gaps.end_ns[-1]
        #: Larger tensors are looked at more often.
        self._weights = np.sqrt(gaps.nbytes)
        self._covering: dict[int, tuple[list[int], list[float]]] = {}
        self._everywhere = self._weighted(np.arange(len(gaps.all)))
        self._large: list[int] = np.lexsort((np.arange(len(gaps.all)), -gaps.nbytes))[:_LARGE].tolist()
        self._numbers = _numbers(seed)

    def best_from(self, start: _Chosen, one_in: int) -> _Chosen:
        """Return the best choices found by one in so many looks of a whole search."""
        best, best_ns = start, self._course.of(start)[0]
        gaps = len(start)
        looks = min(gaps * min(_LOOKS, gaps // _FEW_GAPS), _MOST // (gaps + self._gaps.ops))
        for count in range(1 + looks // one_in // _DESCENT):
            chosen = best.copy()
            changed = self._change_large(chosen) if count else set()
            chosen, cost_ns = self.descend(chosen, changed)
            if cost_ns < best_ns:
                best, best_ns = chosen, cost_ns
        return best

    def _change_large(self, chosen: _Chosen) -> set[int]:
        """Change some of the largest choices, or of the recomputations; return which."""
        recomputed: list[int] = np.nonzero(chosen == RECOMPUTE)[0].tolist()
        changed = set()
        for _ in range(1 + self._below(_AT_ONCE)):
            among = recomputed if recomputed and next(self._numbers) < 0.5 else self._large
            index = among[self._below(len(among))]
            self._change(chosen, index)
            changed.add(index)
        return changed

    def descend(self, chosen: _Chosen, fixed: set[int]) -> tuple[_Chosen, float]:
        """Return the best choices found from here without changing those that are fixed, and their cost."""
        cost_ns, short_at = self._course.of(chosen)
        best, best_ns = chosen.copy(), cost_ns
        for count in range(_DESCENT):
            before = [(index, int(chosen[index])) for index in self._picked(short_at) if index not in fixed]
            for index, _ in before:
                self._change(chosen, index)
            new_ns, new_short_at = self._course.of(chosen)
            warmth_ns = self._period_ns * (_WARM * (1 - count / _DESCENT) + _COLD)
            if new_ns <= cost_ns or next(self._numbers) < math.exp((cost_ns - new_ns) / warmth_ns):
                cost_ns, short_at = new_ns, new_short_at
                if cost_ns < best_ns:
                    best, best_ns = chosen.copy(), cost_ns
            else:
                for index, choice in before:
                    chosen[index] = choice
        return best, best_ns

    def _picked(self, short_at: NDArray[np.int64]) -> set[int]:
        """Return one gap or two, the one at an op at which memory is short, where there is such an op."""
        indices, weights = self._everywhere
        if len(short_at):
            indices, weights = self._covering_at(int(short_at[self._below(len(short_at))]))
        picked = {indices[bisect_right(weights, next(self._numbers) * weights[-1], hi=len(indices) - 1)]}
        if next(self._numbers) < _PAIRS:
            picked.add(self._below(len(self._gaps.all)))
        return picked

    def _covering_at(self, position: int) -> tuple[list[int], list[float]]:
        known = self._covering.get(position)
        if known is None:
            gaps = self._gaps
            at = np.where(gaps.previous < position, position, position + gaps.ops)
            covering = np.nonzero(at < gaps.following)[0]
            known = self._weighted(covering) if len(covering) else self._everywhere
            self._covering[position] = known
        return known

    def _weighted(self, indices: NDArray[np.int64]) -> tuple[list[int], list[float]]:
        """Return indices, and up to each of them the sum of their weights."""
        return indices.tolist(), np.cumsum(self._weights[indices]).tolist()

    def _change(self, chosen: _Chosen, index: int) -> None:
        others = _OTHERS[int(chosen[index])]
        chosen[index] = others[self._below(2 if self._gaps.may_recompute[index] else 1)]

    def _below(self, count: int) -> int:
        return int(next(self._numbers) * count)


def _numbers(seed: int) -> Iterator[float]:
    """Yield numbers from [0, 1), the same for a seed on every machine and with every release of NumPy."""
    bits = np.random.PCG64(seed)
    while True:
        yield from ((bits.random_raw(1024) >> np.uint64(11)) / 2.0**53).tolist()
