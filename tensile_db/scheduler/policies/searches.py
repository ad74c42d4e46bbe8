"""Plans of what local search finds for one job, and of what it found before.

Source: ours; docs/planner/auto.md, "Search".
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tensile_db.graph import OpId
from tensile_db.scheduler.choosing.course import Course
from tensile_db.scheduler.choosing.gaps import chosen_in
from tensile_db.scheduler.choosing.search import descend, search
from tensile_db.scheduler.choosing.ways import OTHER_WAYS, SEARCHED_WAY, USUAL_WAY, Way
from tensile_db.scheduler.plan import Plan
from tensile_db.scheduler.policies.drafts import Drafter, Made, faster
from tensile_db.scheduler.policies.op_orders import OpOrders

#: Of searches, in each order that they are begun in, and then in the best of these.
_SEEDS = range(5)
#: What promised most may take much longer than it promised: beyond so many times the ops' time what promised
#: next is tried, too, up to so many.
_NOT_SLOW = 1.5
_TRIED = 2
#: Somebody waits: no further order is looked at once one promises to take no more than this share longer than
#: the ops.
_PROMISES_ENOUGH = 0.02
#: In which the best plan's order is searched: those whose greedy choices cost least.
_WAYS = 2


class Searches:
    """Of one job within one budget."""

    def __init__(self, drafter: Drafter, orders: OpOrders, budget_nbytes: int) -> None:
        self._drafter = drafter
        self._orders = orders
        self._budget_nbytes = budget_nbytes

    def better(self, best: Made) -> Made:
        """Return what local search makes of the job, if it is faster; it takes seconds.

        It is begun in the best plan's order and in those in which large gradients wait, since greedy choices
        do not tell in which of these it does best, and goes on in the one in which it did.
        """
        orders = dict.fromkeys((best.plan.order, *self._orders.late))
        begun = [self._searched_in(order, SEARCHED_WAY, _SEEDS[:1]) for order in orders]
        made = [found for found in begun if found is not None]
        if made:
            first = min(made, key=lambda found: (found.period_ns, found.plan.order))
            further = self._searched_in(first.plan.order, SEARCHED_WAY, _SEEDS[1:])
            made += [further] if further is not None else []
        for found in made:
            best = faster(best, found)
        return best

    def better_in_order(self, best: Made) -> Made:
        """Return what local search makes of the job in the best plan's order, if it is faster.

        It is begun in the ways whose greedy choices cost least: what may be chosen matters more here than how
        long one looks.
        """
        order = best.plan.order
        like_best = [
            replace(way, holds=best.way.holds, ahead=best.way.ahead) for way in (USUAL_WAY, *OTHER_WAYS)
        ]
        begun = [(way, *self._begun(order, way)) for way in dict.fromkeys((best.way, *like_best))]
        begun.sort(key=lambda each: each[1].of(np.array(each[2], dtype=np.int64))[0])
        for way, course, start in begun[:_WAYS]:
            found = self._drafter.with_choices(order, way, search(course, start, _SEEDS[:1]))
            best = best if found is None else faster(best, found)
        return best

    def from_choices_of(self, former: Plan) -> Made | None:
        """Return what one descent makes of a plan that was searched for, its copies in order for this job.

        former: of this graph.  None where that does not meet the budget.
        """
        residency, _, choices = self._drafter.nothing_chosen(former.order, SEARCHED_WAY)
        course = Course(choices.gaps, residency, self._budget_nbytes)
        chosen, _ = descend(course, chosen_in(former, choices.gaps))
        return self._drafter.with_choices(former.order, SEARCHED_WAY, chosen)

    def at_once(self, *, first_good: bool = False) -> Made | None:
        """Return what one descent makes of the job, in that order in which it promises most.

        first_good: or in the first that promises to take hardly longer than the ops.
        None where that does not meet the budget.
        """
        found = []
        *waiting, usual = self._orders.soon_tried
        best: Made | None = None
        # Which is first matters where one is enough: where memory is shortest, those do best in which updates
        # are far apart.
        for order in (*reversed(waiting), usual):
            chosen, cost_ns = descend(*self._begun(order, SEARCHED_WAY))
            if first_good and cost_ns <= _PROMISES_ENOUGH * self._drafter.ops_ns:
                best = self._tried(best, order, chosen)
                if self._is_not_slow(best):
                    return best
            else:
                found.append((cost_ns, order, chosen))
        for _, order, chosen in sorted(found)[:_TRIED]:
            best = self._tried(best, order, chosen)
            if self._is_not_slow(best):
                break
        return best

    def _tried(self, best: Made | None, order: tuple[OpId, ...], chosen: Sequence[int]) -> Made | None:
        """Return the faster plan of the best one and what is made of these choices."""
        made = self._drafter.with_choices(order, SEARCHED_WAY, chosen)
        return best if made is None else faster(best, made)

    def _is_not_slow(self, made: Made | None) -> bool:
        return made is not None and made.period_ns <= _NOT_SLOW * self._drafter.ops_ns

    def _searched_in(self, order: tuple[OpId, ...], way: Way, seeds: Sequence[int]) -> Made | None:
        """Return what searches make of an order; None where that does not meet the budget."""
        found = search(*self._begun(order, way), seeds)
        return self._drafter.with_choices(order, way, found)

    def _begun(self, order: tuple[OpId, ...], way: Way) -> tuple[Course, list[int]]:
        """Return what judges choices in an order and a way, and the greedy ones to begin with."""
        residency, _, choices = self._drafter.nothing_chosen(order, way)
        course = Course(choices.gaps, residency, self._budget_nbytes)
        choices.meet_budget()
        choices.take_back()
        return course, choices.chosen
