"""Plans of what local search finds for one job, and of what it found before.

Source: ours; docs/planner.md, "auto".
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import OpId
from tensile_db.scheduler.choosing.gaps import Gaps, chosen_in
from tensile_db.scheduler.choosing.search import descend, search
from tensile_db.scheduler.choosing.ways import SEARCHED_WAY
from tensile_db.scheduler.plan import Plan
from tensile_db.scheduler.policies.drafts import Drafter, Made, faster
from tensile_db.scheduler.policies.op_orders import OpOrders

#: Of searches, in each order that they are begun in, and then in the best of these.
_SEEDS = range(5)
#: What promised most may take much longer than it promised: beyond so many times the ops' time what promised
#: next is tried, too, up to so many.
_NOT_SLOW = 1.5
_TRIED = 2


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
        begun = [self._searched_in(order, _SEEDS[:1]) for order in orders]
        made = [found for found in begun if found is not None]
        if made:
            first = min(made, key=lambda found: (found.period_ns, found.plan.order))
            further = self._searched_in(first.plan.order, _SEEDS[1:])
            made += [further] if further is not None else []
        for found in made:
            best = faster(best, found)
        return best

    def from_choices_of(self, former: Plan) -> Made | None:
        """Return what one descent makes of a plan that was searched for, its copies in order for this job.

        former: of this graph.  None where that does not meet the budget.
        """
        residency, _, choices = self._drafter.nothing_chosen(former.order, SEARCHED_WAY)
        start = chosen_in(former, choices.gaps)
        chosen, _ = descend(choices.gaps, residency.footprint, self._budget_nbytes, start)
        return self._drafter.with_choices(former.order, chosen)

    def at_once(self) -> Made | None:
        """Return what one descent makes of the job, in that order in which it promises most.

        None where that does not meet the budget.
        """
        found = []
        for order in self._orders.soon_tried:
            gaps, footprint, start = self._begun(order)
            chosen, cost_ns = descend(gaps, footprint, self._budget_nbytes, start)
            found.append((cost_ns, order, chosen))
        best: Made | None = None
        for _, order, chosen in sorted(found)[:_TRIED]:
            made = self._drafter.with_choices(order, chosen)
            best = best if made is None else faster(best, made)
            if best is not None and best.period_ns <= _NOT_SLOW * self._drafter.ops_ns:
                break
        return best

    def _searched_in(self, order: tuple[OpId, ...], seeds: Sequence[int]) -> Made | None:
        """Return what searches make of an order; None where that does not meet the budget."""
        gaps, footprint, start = self._begun(order)
        found = search(gaps, footprint, self._budget_nbytes, start, seeds)
        return self._drafter.with_choices(order, found)

    def _begun(self, order: tuple[OpId, ...]) -> tuple[Gaps, NDArray[np.int64], list[int]]:
        """Return an order's gaps, its footprint with nothing chosen, and the choices to begin with."""
        residency, _, choices = self._drafter.nothing_chosen(order, SEARCHED_WAY)
        footprint = residency.footprint.copy()
        choices.meet_budget()
        choices.take_back()
        return choices.gaps, footprint, choices.chosen
