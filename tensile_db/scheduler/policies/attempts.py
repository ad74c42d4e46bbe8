"""Plans of one job within one budget, as many as are worth their time: what `auto` chooses among.

Source: ours; docs/planner/auto.md, "What is tried".
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from tensile_db.graph import OpId
from tensile_db.scheduler.choosing.sources import holds_sources
from tensile_db.scheduler.choosing.ways import HOLDING_WAY, OTHER_WAYS, TIGHT_WAY, USUAL_WAY, Way
from tensile_db.scheduler.plan import DeviceSpec, Plan, Release
from tensile_db.scheduler.policies import tensile
from tensile_db.scheduler.policies.drafts import GOOD_ENOUGH, Draft, Drafter, Made, faster
from tensile_db.scheduler.policies.op_orders import OpOrders
from tensile_db.scheduler.policies.searches import Searches
from tensile_db.scheduler.request import JobRequest

#: Of a job with so many ops another way is tried; of one with half as many, two.
_EFFORT_OPS = 4000
#: The published algorithms look through every tensor at every op in need, which is too much beyond so many.
_PUBLISHED_OPS = 10_000
#: Of so few ops both ways of their last resort take milliseconds, and one is the best plan more often.
_BOTH_WAYS_OPS = 100
#: A job slower than this times its ops alone is worth trying two other ways, whatever its size.
HARD = 1.1
#: In a job slower than this ops mostly wait for copies: what leaves is best what is not needed for longest,
#: whatever would hide behind ops.
SLOW = 2
#: With up to so many times its memory a plan that holds sources is made anew in that way alone.
_HOLDS_STILL = 1.04


class Planner:
    """Makes plans of one job within one budget."""

    def __init__(
        self,
        request: JobRequest,
        device: DeviceSpec,
        budget_nbytes: int,
        sharers: int,
        held_nbytes: int = 0,
        *,
        in_haste: bool = False,
    ) -> None:
        """sharers, held_nbytes, in_haste: as a Drafter has them."""
        self._request = request
        self.device = device
        self.budget_nbytes = budget_nbytes
        self._sharers = sharers
        self._in_haste = in_haste
        self.drafter = Drafter(request, device, budget_nbytes, sharers, held_nbytes, in_haste=in_haste)
        #: How the fastest plan of those in the usual ways was made.
        self._way = USUAL_WAY
        #: In which it is planned.
        self.orders = OpOrders(
            request,
            budget_nbytes,
            bytes_per_s=self._shared(device.d2h_bytes_per_s),
            shares_link=sharers > 1,
        )
        self.searches = Searches(self.drafter, self.orders, budget_nbytes)
        #: The time of the ops alone.
        self.ops_ns = sum(request.latencies_ns)
        #: What `fastest` has looked at.
        self.tried: list[Made] = []

    def drafted_once(self, former: Plan, grown: float) -> Made | None:
        """Return what choosing anew gives in a plan's order; None where that does not meet the budget.

        former: of this graph; grown: the budget as a multiple of what the plan is guaranteed to hold.
        """
        # Where nothing was away, ops ran in eager's order, and gradients were held to the iteration's end.
        if all(isinstance(event, Release) for event in former.events):
            return self.drafted_at_once()
        drafts = self._drafts([former.order], self._ways_after(former, grown))
        return self.drafter.at_once(drafts[0]) if drafts else None

    def drafted_at_once(self) -> Made | None:
        """Return what choosing once gives in the first order; None where that does not meet the budget.

        With large gradients that is one in which these wait, and where copies do not hide, search takes over.
        """
        large = self.orders.has_large_gradients
        order = self.orders.soon_tried[0] if large else next(self.orders.usual())
        drafts = self._drafts([order], (self._quick_way(order),))
        if large and self.device.duplex and not (drafts and drafts[0].hides):
            found = self.searches.at_once(first_good=self._in_haste)
            if found is not None:
                return found
        return self.drafter.at_once(drafts[0]) if drafts else None

    def _ways_after(self, former: Plan, grown: float) -> tuple[Way, ...]:
        """Return in which ways choosing anew is worth its time: the less memory, the more sources help."""
        if holds_sources(former, self._request.graph):
            return (HOLDING_WAY,) if grown <= _HOLDS_STILL else (USUAL_WAY, HOLDING_WAY)
        return (self._quick_way(former.order) if grown < 1 else USUAL_WAY,)

    def _quick_way(self, order: tuple[OpId, ...]) -> Way:
        """Return the one way that is tried where memory is short: sources are held where there are any."""
        return HOLDING_WAY if self.drafter.has_sources(order, HOLDING_WAY) else USUAL_WAY

    def fastest(self) -> Made:
        """Return the fastest plan found; the search ends with one that is hardly slower than the ops."""
        best: Made | None = None
        for made in self.attempts():
            best = faster(best, made)
            self.tried.append(made)
            if best.period_ns <= GOOD_ENOUGH * self.ops_ns:
                break
        assert best is not None, "swaps alone meet every budget above the bound"
        return best

    def attempts(self) -> Iterator[Made]:
        """Yield plans that meet the budget, the most promising first.

        They are made as they are asked for: planning ends with the last one that is.
        """
        best = yield from self._in_usual_way()
        if best is None or best.period_ns > SLOW * self.ops_ns:
            for order in self.orders.usual():
                swapped = self.drafter.by_swaps(order)
                yield swapped
                best = faster(best, swapped)
        assert best is not None, "swaps alone meet every budget above the bound"
        if len(self._request.graph.ops) <= _PUBLISHED_OPS:
            published = self._as_published(best.period_ns)
            if published is not None:
                yield published
        yield from self._in_other_ways(best)

    def by_swaps(self) -> Made:
        """Return the plan of one pass of swaps, which meets every budget from the bound on."""
        return self.drafter.by_swaps(next(self.orders.usual()))

    def _in_usual_way(self) -> Generator[Made, None, Made | None]:
        """Yield plans for different orders of the ops, and return the fastest; there may be none."""
        first, *orders = self.orders.usual()
        drafts = self._drafts([first], (USUAL_WAY, HOLDING_WAY))
        way = drafts[0].way if drafts else USUAL_WAY
        drafts += self._drafts(orders, [way])
        if self._sharers > 1:
            # Of a link that others use, too, what leaves ahead takes time that other copies need.
            drafts += self._drafts([first, *orders], [replace(way, ahead=False)])
        drafts.sort(key=Draft.promise)
        best: Made | None = None
        for draft in drafts:
            if draft.may_beat(best):
                made = self.drafter.in_rounds(draft)
                yield made
                if best is None or made.period_ns < best.period_ns:
                    best, self._way = made, replace(draft.way, holds=way.holds)
        return best

    def _in_other_ways(self, best: Made) -> Iterator[Made]:
        """Yield plans for the order of the best one in the usual way, as many as are worth their time."""
        order = best.plan.order
        # Of few ops, planning is cheap; and where time is lost, there is something to gain.
        hard = best.period_ns > HARD * self.ops_ns
        worth = max(_EFFORT_OPS // len(self._request.graph.ops), 2 if hard else 0)
        ways = [self._like_best(way) for way in OTHER_WAYS[:worth]]
        if hard:
            tight = self.drafter.draft(order, self._like_best(TIGHT_WAY))
            if tight is not None and tight.may_beat(best):
                made = self.drafter.in_rounds(tight)
                yield made
                apart = made.period_ns < best.period_ns
                ways = [replace(way, apart=apart) for way in ways]
        for way in ways:
            draft = self.drafter.draft(order, way)
            if draft is not None and draft.may_beat(best):
                yield self.drafter.in_rounds(draft)

    def _like_best(self, way: Way) -> Way:
        return replace(way, holds=self._way.holds, ahead=self._way.ahead)

    def _drafts(self, orders: Sequence[tuple[OpId, ...]], ways: Sequence[Way]) -> list[Draft]:
        """Return what is chosen in these orders and ways, the most promising first."""
        drafts = [
            self.drafter.draft(order, way)
            for order in orders
            for way in ways
            if not way.holds or self.drafter.has_sources(order, way)
        ]
        return sorted((draft for draft in drafts if draft is not None), key=Draft.promise)

    def _as_published(self, slowest_ns: int) -> Made | None:
        """Return what the paper's algorithms make of the job; they meet every budget above the bound.

        None if it is slower than that.
        """
        device = replace(
            self.device,
            d2h_bytes_per_s=self._shared(self.device.d2h_bytes_per_s),
            h2d_bytes_per_s=self._shared(self.device.h2d_bytes_per_s),
        )
        both = len(self._request.graph.ops) <= _BOTH_WAYS_OPS
        plan = tensile.plan_if_faster(self._request, device, self.budget_nbytes, slowest_ns, both=both)
        if plan is None:
            return None
        return self.drafter.as_made(replace(plan, policy="auto"))

    def _shared(self, bytes_per_s: int) -> int:
        """Return the job's part of a link's rate; a copy always ends some time."""
        return max(1, bytes_per_s // self._sharers)
