"""Plans of one job within one budget, as many as are worth their time: what `auto` chooses among.

Source: ours; docs/planner.md, "auto".
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensile_db.errors import InvalidPlan
from tensile_db.graph import OpId
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.beginnings import Beginnings
from tensile_db.scheduler.choosing.choices import Choices
from tensile_db.scheduler.choosing.furthest import evict_furthest
from tensile_db.scheduler.choosing.gaps import Gaps, chosen_in
from tensile_db.scheduler.choosing.passive import evict_to_budget
from tensile_db.scheduler.choosing.search import search
from tensile_db.scheduler.choosing.sources import holds_sources
from tensile_db.scheduler.choosing.ways import (
    HOLDING_WAY,
    OTHER_WAYS,
    SEARCHED_WAY,
    TIGHT_WAY,
    USUAL_WAY,
    Way,
)
from tensile_db.scheduler.plan import DeviceSpec, Plan, Release, SwapIn
from tensile_db.scheduler.policies import tensile
from tensile_db.scheduler.policies.drafts import Draft, Made, faster
from tensile_db.scheduler.policies.op_orders import OpOrders
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble, await_later, return_earlier
from tensile_db.scheduler.settling.follow import follow_timeline
from tensile_db.scheduler.settling.urgency import let_urgent_pass
from tensile_db.scheduler.timeline import Timeline, simulate_settled

#: Of a job with so many ops another way is tried; of one with half as many, two.
_EFFORT_OPS = 4000
#: The published algorithms look through every tensor at every op in need, which is too much beyond so many.
_PUBLISHED_OPS = 10_000
#: A plan slower than this times its ops alone is worth trying to beat.
GOOD_ENOUGH = 1.001
#: A job slower than this times its ops alone is worth trying two other ways, whatever its size.
HARD = 1.1
#: Of searches, in each order that they are begun in, and then in the best of these.
_SEEDS = range(5)
#: Tensors below this share of the budget stay.
_LEAST_SHARE = 1 / 4000
#: A plan is made again with the stalls of the one before in its timeline, at most so often, and as long as
#: that saves more than this share of the time.
_ROUNDS = 3
_WORTH_A_ROUND = 0.005
#: Ops that wait no longer than this share of the time of all ops are left waiting.
_WORTH_PASSING = 0.001
#: With up to so many times its memory a plan that holds sources is made anew in that way alone.
_HOLDS_STILL = 1.04


class Planner:
    """Makes plans of one job within one budget."""

    def __init__(self, request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> None:
        self._request = request
        self._device = device
        self._budget_nbytes = budget_nbytes
        self._sharers = sharers
        self._least_nbytes = max(1, int(budget_nbytes * _LEAST_SHARE))
        self._beginnings = Beginnings(
            request.graph,
            request.latencies_ns,
            device,
            budget_nbytes=budget_nbytes,
            least_nbytes=self._least_nbytes,
        )
        #: How the fastest plan of those in the usual ways was made.
        self._way = USUAL_WAY
        #: In which it is planned.
        self.orders = OpOrders(
            request,
            budget_nbytes,
            bytes_per_s=self._shared(device.d2h_bytes_per_s),
            shares_link=sharers > 1,
        )
        #: The time of the ops alone.
        self.ops_ns = sum(request.latencies_ns)

    def kept(self, plan: Plan) -> Made | None:
        """Return a plan of this graph, its copies back as early as their turn comes; None if invalid."""
        # Delays are of other latencies.  What is guaranteed does not depend on them.
        events = tuple(
            replace(event, delta_ns=0) if isinstance(event, SwapIn) and event.delta_ns else event
            for event in plan.events
        )
        try:
            settled, timeline = self._settled(replace(plan, events=events))
        except InvalidPlan:
            return None
        return Made(plan=settled, period_ns=timeline.period_ns)

    def drafted_once(self, former: Plan, grown: float) -> Made | None:
        """Return what choosing anew gives in a plan's order; None where that does not meet the budget.

        former: of this graph; grown: the budget as a multiple of what the plan is guaranteed to hold.
        """
        # Where nothing was away, ops ran in eager's order, and gradients were held to the iteration's end.
        if all(isinstance(event, Release) for event in former.events):
            return self.drafted_at_once()
        drafts = self._drafts([former.order], self._ways_after(former, grown))
        return self._at_once(drafts[0]) if drafts else None

    def drafted_at_once(self) -> Made | None:
        """Return what choosing once gives in the first order; None where that does not meet the budget."""
        order = next(self.orders.usual())
        drafts = self._drafts([order], (self._quick_way(order),))
        return self._at_once(drafts[0]) if drafts else None

    def _ways_after(self, former: Plan, grown: float) -> tuple[Way, ...]:
        """Return in which ways choosing anew is worth its time: the less memory, the more sources help."""
        if holds_sources(former, self._request.graph):
            return (HOLDING_WAY,) if grown <= _HOLDS_STILL else (USUAL_WAY, HOLDING_WAY)
        return (self._quick_way(former.order) if grown < 1 else USUAL_WAY,)

    def _quick_way(self, order: tuple[OpId, ...]) -> Way:
        """Return the one way that is tried where memory is short: sources are held where there are any."""
        return HOLDING_WAY if self._beginnings.sources(order, HOLDING_WAY.reach) else USUAL_WAY

    def searched(self, best: Made) -> Made:
        """Return what local search makes of the job, if it is faster.

        It is begun in the best plan's order and in those in which large gradients wait, since greedy choices
        do not tell in which of these it does best, and goes on in the one in which it did.
        """
        orders = dict.fromkeys((best.plan.order, *self.orders.late))
        begun = [self._searched_in(order, _SEEDS[:1]) for order in orders]
        made = [found for found in begun if found is not None]
        if made:
            first = min(made, key=lambda found: (found.period_ns, found.plan.order))
            further = self._searched_in(first.plan.order, _SEEDS[1:])
            made += [further] if further is not None else []
        for found in made:
            best = faster(best, found)
        return best

    def _searched_in(self, order: tuple[OpId, ...], seeds: Sequence[int]) -> Made | None:
        """Return what searches make of an order; None where that does not meet the budget."""
        residency, _, choices = self._nothing_chosen(order, SEARCHED_WAY)
        footprint = residency.footprint.copy()
        choices.meet_budget()
        choices.take_back()
        found = search(choices.gaps, footprint, self._budget_nbytes, choices.chosen, seeds)
        return self._with(order, lambda _: found)

    def with_choices_of(self, former: Plan) -> Made | None:
        """Return a plan with the choices of one that was searched for, its copies in order for this job.

        former: of this graph.  None where its choices do not meet the budget.
        """
        return self._with(former.order, lambda gaps: chosen_in(former, gaps))

    def _with(self, order: tuple[OpId, ...], choose: Callable[[Gaps], Sequence[int]]) -> Made | None:
        """Return the plan of what is chosen for all gaps at once; None where that fails."""
        residency, link, choices = self._nothing_chosen(order, SEARCHED_WAY)
        recompute_ns = choices.take(choose(choices.gaps))
        hides = residency.peak_nbytes <= self._budget_nbytes
        draft = self._as_draft(residency, link, SEARCHED_WAY, hides, recompute_ns)
        return None if draft is None else self._in_step(draft)[0]

    def fastest(self) -> Made:
        """Return the fastest plan found; the search ends with one that is hardly slower than the ops."""
        best: Made | None = None
        for made in self.attempts():
            best = faster(best, made)
            if best.period_ns <= GOOD_ENOUGH * self.ops_ns:
                break
        assert best is not None, "swaps alone meet every budget above the bound"
        return best

    def attempts(self) -> Iterator[Made]:
        """Yield plans that meet the budget, the most promising first.

        They are made as they are asked for: planning ends with the last one that is.
        """
        best = yield from self._in_usual_way()
        if best is None:
            best = self.by_swaps()
            yield best
        if len(self._request.graph.ops) <= _PUBLISHED_OPS:
            published = self._as_published(best.period_ns)
            if published is not None:
                yield published
        yield from self._in_other_ways(best)

    def by_swaps(self) -> Made:
        """Return the plan of one pass of swaps, which meets every budget from the bound on."""
        graph, latencies_ns = self._request.graph, self._request.latencies_ns
        residency = Residency(graph, latencies_ns, next(self.orders.usual()))
        met = evict_furthest(residency, self._budget_nbytes)
        assert met, "no op needs more than the bound"
        link = Link(self._device, self._sharers)
        draft = Draft(residency=residency, link=link, way=USUAL_WAY, hides=False, least_ns=self.ops_ns)
        return self._in_step(draft)[0]

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
                made = self._in_rounds(draft)
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
            tight = self._draft(order, self._like_best(TIGHT_WAY))
            if tight is not None and tight.may_beat(best):
                made = self._in_rounds(tight)
                yield made
                apart = made.period_ns < best.period_ns
                ways = [replace(way, apart=apart) for way in ways]
        for way in ways:
            draft = self._draft(order, way)
            if draft is not None and draft.may_beat(best):
                yield self._in_rounds(draft)

    def _like_best(self, way: Way) -> Way:
        return replace(way, holds=self._way.holds, ahead=self._way.ahead)

    def _drafts(self, orders: Sequence[tuple[OpId, ...]], ways: Sequence[Way]) -> list[Draft]:
        """Return what is chosen in these orders and ways, the most promising first."""
        drafts = [
            self._draft(order, way)
            for order in orders
            for way in ways
            if not way.holds or self._beginnings.sources(order, way.reach)
        ]
        return sorted((draft for draft in drafts if draft is not None), key=Draft.promise)

    def _draft(
        self, order: tuple[OpId, ...], way: Way, idle_ns: NDArray[np.int64] | None = None
    ) -> Draft | None:
        """Choose what meets the budget; None where recomputation leaves it out of reach.

        idle_ns: how long each op stalls beforehand, which is time for copies; shape (ops,).
        """
        residency, link, choices = self._nothing_chosen(order, way, idle_ns)
        hides = choices.meet_budget()
        recompute_ns = choices.take_back()
        return self._as_draft(residency, link, way, hides, recompute_ns)

    def _nothing_chosen(
        self, order: tuple[OpId, ...], way: Way, idle_ns: NDArray[np.int64] | None = None
    ) -> tuple[Residency, Link, Choices]:
        residency, candidates = self._beginnings.begin(order, way)
        if idle_ns is not None:
            residency.retime(idle_ns)
        link = Link(self._device, self._sharers)
        choices = Choices(
            residency,
            link,
            candidates,
            budget_nbytes=self._budget_nbytes,
            least_nbytes=self._least_nbytes,
            first=way.first,
            ahead=way.ahead,
        )
        return residency, link, choices

    def _as_draft(
        self, residency: Residency, link: Link, way: Way, hides: bool, recompute_ns: int
    ) -> Draft | None:
        """Meet the budget with stalls where choices alone do not; None where that fails."""
        if not evict_to_budget(residency, link, self._budget_nbytes):
            return None
        return Draft(
            residency=residency, link=link, way=way, hides=hides, least_ns=self.ops_ns + recompute_ns
        )

    def _in_rounds(self, draft: Draft) -> Made:
        """Return the draft's plan, or a faster one that comes of drafting again with its stalls."""
        best, timeline = self._in_step(draft)
        for _ in range(_ROUNDS - 1):
            if draft.hides:
                break
            again = self._draft(draft.residency.table.order, draft.way, timeline.idle_before_ns())
            if again is None:
                break
            draft = again
            made, timeline = self._in_step(draft)
            gained_ns = best.period_ns - made.period_ns
            best = faster(best, made)
            if gained_ns < _WORTH_A_ROUND * self.ops_ns:
                break
        return best

    def _at_once(self, draft: Draft) -> Made:
        """Return the draft's plan, as it is where its copies hide; else put in step with its timeline."""
        if not draft.hides:
            return self._in_step(draft)[0]
        residency = draft.residency
        return_earlier(residency, draft.link, self._budget_nbytes)
        await_later(residency, residency.peak_nbytes)
        plan, timeline = self._settled(assemble(residency, "auto"))
        if timeline.period_ns <= GOOD_ENOUGH * draft.least_ns:
            return Made(plan=plan, period_ns=timeline.period_ns)
        return self._followed(draft, timeline)[0]

    def _in_step(self, draft: Draft) -> tuple[Made, Timeline]:
        """Put the draft's copies in step with their timeline; return its plan, and the timeline of that."""
        residency, link = draft.residency, draft.link
        return_earlier(residency, link, self._budget_nbytes)
        return self._followed(draft, self._settled(assemble(residency, "auto"))[1])

    def _followed(self, draft: Draft, timeline: Timeline) -> tuple[Made, Timeline]:
        """Return the plan of a draft that follows this timeline of its, and the timeline of that."""
        residency, link = draft.residency, draft.link
        follow_timeline(residency, timeline, duplex=self._device.duplex)
        return_earlier(residency, link, self._budget_nbytes)
        await_later(residency, max(timeline.peak_nbytes, residency.peak_nbytes))
        plan, timeline = self._settled(assemble(residency, "auto"))
        made = Made(plan=plan, period_ns=timeline.period_ns)
        return self._urgent_first(draft, made, timeline) if self._device.duplex else (made, timeline)

    def _urgent_first(self, draft: Draft, made: Made, timeline: Timeline) -> tuple[Made, Timeline]:
        """Let copies back pass that ops wait for, as long as that makes the draft's plan faster."""
        least_ns = int(self.ops_ns * _WORTH_PASSING)
        for _ in range(_ROUNDS):
            if not let_urgent_pass(draft.residency, timeline, least_ns=least_ns):
                break
            plan, passed = self._settled(assemble(draft.residency, "auto"))
            if passed.period_ns >= made.period_ns:
                break
            made, timeline = Made(plan=plan, period_ns=passed.period_ns), passed
        return made, timeline

    def _as_published(self, slowest_ns: int) -> Made | None:
        """Return what the paper's algorithms make of the job; they meet every budget above the bound.

        None if it is slower than that.
        """
        device = replace(
            self._device,
            d2h_bytes_per_s=self._shared(self._device.d2h_bytes_per_s),
            h2d_bytes_per_s=self._shared(self._device.h2d_bytes_per_s),
        )
        plan = tensile.plan_if_faster(self._request, device, self._budget_nbytes, slowest_ns)
        if plan is None:
            return None
        plan, timeline = self._settled(replace(plan, policy="auto"))
        return Made(plan=plan, period_ns=timeline.period_ns)

    def _shared(self, bytes_per_s: int) -> int:
        """Return the job's part of a link's rate; a copy always ends some time."""
        return max(1, bytes_per_s // self._sharers)

    def _settled(self, plan: Plan) -> tuple[Plan, Timeline]:
        return simulate_settled(self._request.graph, self._request.latencies_ns, plan, self._device)
