"""Recomputations that reach farther back than the ways of choosing have them, tried one by one.

What is made again needs its inputs back by then, chosen or not: that makes every recomputation there is to
choose from a burden on the others, and so the ways look no farther than a share of the iteration.  Where a
plan is there already, its own recomputations are enough, and others can be added to them one at a time: the
one that joins two halves of a network, say, whose feature map lay idle going forward too shortly for a copy,
and is made of what is needed again only much later.

Source: ours; docs/planner/auto.md, "Farther recomputations".  Large neighbourhood search (Shaw, 1998).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensile_db.graph import OpId, TensorId
from tensile_db.scheduler.choosing.course import Course
from tensile_db.scheduler.choosing.gaps import RECOMPUTE, Gaps, carried, chosen_in
from tensile_db.scheduler.choosing.search import search
from tensile_db.scheduler.choosing.ways import Way
from tensile_db.scheduler.policies.drafts import Drafter, Made, faster

#: Each one that is tried is searched for, in a quarter of a second where there are so many gaps.
FEW_GAPS = 400
#: A search looks at one in so many of a whole one's: where one ends, it ends soon.
_SHORT = 32
#: A recomputation is kept that saves more than this share of the ops' time.
_WORTH_KEEPING = 1e-5

#: A recomputation: of a tensor, before an op.
_Key = tuple[TensorId, OpId]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """What is chosen for all gaps that there are with some recomputations to choose from, and its cost."""

    #: The recomputations there may be: what some of them need, others may not do without.
    keys: frozenset[_Key]
    course: Course
    chosen: Sequence[int]
    cost_ns: float

    @property
    def gaps(self) -> Gaps:
        return self.course.gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is tried.

    starts: the seeds of the searches each time that it is begun with, from the same plan, for what is kept
    first decides what helps later; rounds: all are tried in turn until none helps, each at most so often.
    """

    starts: tuple[range, ...]
    rounds: int


#: The second with seeds that the first has not.
THOROUGH = Effort(starts=(range(12), range(100, 112)), rounds=5)
#: Enough to see whether others are likely to help much.
GLANCE = Effort(starts=(range(2),), rounds=1)


class Farther:
    """Of one job within one budget."""

    def __init__(self, drafter: Drafter, budget_nbytes: int, made: Made) -> None:
        """made: a plan of the job, which is begun with."""
        self._drafter = drafter
        self._budget_nbytes = budget_nbytes
        self._made = made
        self._order = made.plan.order
        self._way = made.way

    def better(self, effort: Effort = THOROUGH) -> Made:
        """Return the plan that is begun with, or a faster one; a thorough look takes up to a minute."""
        course = self._course(self._way)
        if len(course.gaps.all) > FEW_GAPS:
            return self._made
        keys = frozenset(self._candidates(course.gaps))
        begun = self._choices(keys, course, chosen_in(self._made.plan, course.gaps))
        first = self._without_others(self._among(begun, keys))
        best = self._faster_with(self._made, first)
        for seeds in effort.starts:
            for choices in self._ever_better(first, seeds, effort.rounds):
                best = self._faster_with(best, choices)
        return best

    def _faster_with(self, best: Made, choices: _Choices) -> Made:
        """Return a plan, or that of choices if it is faster: it takes not quite what their course says."""
        way = replace(self._way, only=choices.keys)
        found = self._drafter.with_choices(self._order, way, choices.chosen)
        return best if found is None else faster(best, found)

    def _ever_better(self, best: _Choices, seeds: range, rounds: int) -> Iterator[_Choices]:
        """Yield choices while recomputations are tried one by one, each by searches with these seeds."""
        in_vain: set[_Key] = set()
        for _ in range(rounds):
            before = best
            for key in self._not_there(best.gaps):
                if key in in_vain:
                    continue
                more = self._with(best, key, seeds)
                if more is best:
                    in_vain.add(key)
                else:
                    in_vain, best = set(), more
                    yield best
            if best is before:
                return
            best = self._without_others(best)
            yield best

    def _without_others(self, best: _Choices) -> _Choices:
        """Return the same choices with as few other recomputations to choose from as they can do with.

        The dearest are left out first.  What is chosen may need some that are not: these keep what it needs.
        """
        gaps = best.gaps
        others = {key: i for key, i in self._candidates(gaps).items() if best.chosen[i] != RECOMPUTE}
        for key in sorted(others, key=lambda key: (-gaps.recompute_cost[others[key]], others[key])):
            fewer = self._among(best, best.keys - {key})
            if fewer.cost_ns <= best.cost_ns:
                best = fewer
        return best

    def _not_there(self, gaps: Gaps) -> list[_Key]:
        """Return what might be recomputed, too: what is large and idle for long first."""
        idle = gaps.nbytes * gaps.idle_ns()
        within = np.nonzero(~gaps.may_recompute & (gaps.following < gaps.ops))[0]
        return [self._key(gaps, index) for index in within[np.argsort(-idle[within], kind="stable")].tolist()]

    def _with(self, best: _Choices, key: _Key, seeds: range) -> _Choices:
        """Return the choices that search finds with one more recomputation, if they are better."""
        more = self._among(best, best.keys | {key})
        index = self._candidates(more.gaps).get(key)
        if index is None or more.gaps.recompute_cost[index] > _dearest(best):
            return best
        begin = list(more.chosen)
        begin[index] = RECOMPUTE
        chosen = search(more.course, begin, seeds, one_in=_SHORT)
        found = self._choices(more.keys, more.course, chosen)
        return found if found.cost_ns < best.cost_ns - _WORTH_KEEPING * self._drafter.ops_ns else best

    def _among(self, choices: _Choices, keys: frozenset[_Key]) -> _Choices:
        """Return choices where no other recomputations than these may be."""
        course = self._course(replace(self._way, only=keys))
        return self._choices(keys, course, carried(choices.chosen, choices.gaps, course.gaps))

    def _choices(self, keys: frozenset[_Key], course: Course, chosen: Sequence[int]) -> _Choices:
        cost_ns, _ = course.of(np.array(chosen, dtype=np.int64))
        return _Choices(keys=keys, course=course, chosen=chosen, cost_ns=cost_ns)

    def _course(self, way: Way) -> Course:
        residency, _, choices = self._drafter.nothing_chosen(self._order, way)
        return Course(choices.gaps, residency, self._budget_nbytes)

    def _candidates(self, gaps: Gaps) -> dict[_Key, int]:
        """Return the recomputations that there are to choose from, and of which gap each is."""
        return {self._key(gaps, index): index for index in np.nonzero(gaps.may_recompute)[0].tolist()}

    def _key(self, gaps: Gaps, index: int) -> _Key:
        gap = gaps.all[index]
        return gap.tensor, self._order[gap.following]


def _dearest(choices: _Choices) -> float:
    """Return what the dearest recomputation that is chosen costs, ns a byte; infinite where none is."""
    recomputed = np.array(choices.chosen) == RECOMPUTE
    return float(choices.gaps.recompute_cost[recomputed].max(initial=0.0)) or np.inf
