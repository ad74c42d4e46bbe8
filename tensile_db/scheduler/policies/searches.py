"""Plans of what local search finds for one job, and of what it found before.

Source: ours; docs/planner.md, "auto".
"""

from collections.abc import Sequence

from tensile_db.graph import OpId
from tensile_db.scheduler.choosing.gaps import chosen_in
from tensile_db.scheduler.choosing.search import search
from tensile_db.scheduler.choosing.ways import SEARCHED_WAY
from tensile_db.scheduler.plan import Plan
from tensile_db.scheduler.policies.drafts import Drafter, Made, faster
from tensile_db.scheduler.policies.op_orders import OpOrders

#: Of searches, in each order that they are begun in, and then in the best of these.
_SEEDS = range(5)


class Searches:
    """Of one job within one budget."""

    def __init__(self, drafter: Drafter, orders: OpOrders, budget_nbytes: int) -> None:
        self._drafter = drafter
        self._orders = orders
        self._budget_nbytes = budget_nbytes

    def better(self, best: Made) -> Made:
        """Return what local search makes of the job, if it is faster.

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

    def with_choices_of(self, former: Plan) -> Made | None:
        """Return a plan with the choices of one that was searched for, its copies in order for this job.

        former: of this graph.  None where its choices do not meet the budget.
        """
        return self._drafter.with_choices(former.order, lambda gaps: chosen_in(former, gaps))

    def _searched_in(self, order: tuple[OpId, ...], seeds: Sequence[int]) -> Made | None:
        """Return what searches make of an order; None where that does not meet the budget."""
        residency, _, choices = self._drafter.nothing_chosen(order, SEARCHED_WAY)
        footprint = residency.footprint.copy()
        choices.meet_budget()
        choices.take_back()
        found = search(choices.gaps, footprint, self._budget_nbytes, choices.chosen, seeds)
        return self._drafter.with_choices(order, lambda _: found)
