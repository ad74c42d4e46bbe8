"""What is chosen for one order of a job's ops, and the plan that is made of it.

Source: ours; docs/planner/auto.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tensile_db.errors import InvalidPlan
from tensile_db.graph import OpId
from tensile_db.scheduler.analysis.changes import Changes
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.beginnings import Beginnings
from tensile_db.scheduler.choosing.choices import Choices
from tensile_db.scheduler.choosing.furthest import evict_furthest
from tensile_db.scheduler.choosing.passive import evict_to_budget
from tensile_db.scheduler.choosing.ways import USUAL_WAY, Way
from tensile_db.scheduler.plan import DeviceSpec, Plan, SwapIn
from tensile_db.scheduler.policies.relief import Relief
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble, await_later, return_earlier
from tensile_db.scheduler.settling.follow import follow_timeline
from tensile_db.scheduler.settling.urgency import let_urgent_pass
from tensile_db.scheduler.timeline import Timeline, simulate_settled

#: A plan slower than this times its ops alone is worth trying to beat.
GOOD_ENOUGH = 1.001
#: Tensors below this share of the budget, or of what the plan in force holds, stay.
_LEAST_SHARE = 1 / 4000
#: The same for a newcomer among others: of InceptionV4's plan, made in 44 instead of 49 ms, no choice that
#: matters is among the smaller ones.
_LEAST_SHARE_IN_HASTE = 1 / 1800
#: A plan is made again with the stalls of the one before in its timeline, at most so often, and as long as
#: that saves more than this share of the time.
_ROUNDS = 3
_WORTH_A_ROUND = 0.005
#: Ops that wait no longer than this share of the time of all ops are left waiting.
_WORTH_PASSING = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What is chosen for one order of the ops; its copies are put in step with their timeline later."""

    residency: Residency
    link: Link
    way: Way
    #: Whether no op waits for a copy, as far as can be told yet.
    hides: bool
    #: The time of all ops and recomputations.
    least_ns: int

    def promise(self) -> tuple[bool, int]:
        """Return by what drafts are sorted, the most promising first."""
        return not self.hides, self.least_ns

    def may_beat(self, made: "Made | None") -> bool:
        """Return whether its plan could be faster: it takes no less time than its ops do."""
        return made is None or self.least_ns < made.period_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A plan that meets the budget, and the time of an iteration by it."""

    plan: Plan
    period_ns: int
    #: In which it was drafted, or would be anew.
    way: Way = USUAL_WAY
    #: What it was made of, which relief changes; None where it was not drafted here.
    draft: Draft | None = None

    def may_beat(self, other: "Made") -> bool:
        """Return whether it could be faster than another once it has fewer stalls."""
        return self.draft is not None and self.draft.may_beat(other)


def faster(known: Made | None, made: Made) -> Made:
    """Return the faster of two plans; the one known before where both take as long."""
    return made if known is None or made.period_ns < known.period_ns else known


class Drafter:
    """Drafts one job within one budget, and makes plans of the drafts."""

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
        """sharers: of the link, this job included; held_nbytes: what the plan in force holds.

        A plan for less memory than that moves no tensors that are small beside it: then what there is to
        choose from is mostly known already.  in_haste: as of a JobRequest; fewer small tensors are moved.
        """
        self._request = request
        self._device = device
        self._budget_nbytes = budget_nbytes
        self._sharers = sharers
        least_share = _LEAST_SHARE_IN_HASTE if in_haste else _LEAST_SHARE
        self._least_nbytes = max(1, int(max(budget_nbytes, held_nbytes) * least_share))
        self._beginnings = Beginnings(
            request.graph,
            request.latencies_ns,
            device,
            budget_nbytes=budget_nbytes,
            least_nbytes=self._least_nbytes,
        )
        #: The time of the ops alone.
        self.ops_ns = sum(request.latencies_ns)

    def has_sources(self, order: tuple[OpId, ...], way: Way) -> bool:
        """Whether there is anything to hold in an order and a way (`choosing/sources.py`)."""
        return bool(self._beginnings.sources(order, way.reach))

    def kept(self, plan: Plan) -> Made | None:
        """Return a plan of this graph, its copies back as early as their turn comes; None if invalid."""
        # Delays are of other latencies.  What is guaranteed does not depend on them.
        events = tuple(
            replace(event, delta_ns=0) if isinstance(event, SwapIn) and event.delta_ns else event
            for event in plan.events
        )
        try:
            return self.as_made(replace(plan, events=events))
        except InvalidPlan:
            return None

    def idle_before_ns(self, plan: Plan) -> NDArray[np.int64]:
        """Return how long each op of a plan stalls, shape (ops,), in order."""
        return self._settled(plan)[1].idle_before_ns()

    def as_made(self, plan: Plan) -> Made:
        """Return a plan of this graph with the delays of its timeline.  Raises InvalidPlan."""
        settled, timeline = self._settled(plan)
        return Made(plan=settled, period_ns=timeline.period_ns)

    def with_choices(
        self,
        order: tuple[OpId, ...],
        way: Way,
        chosen: Sequence[int],
        idle_ns: NDArray[np.int64] | None = None,
    ) -> Made | None:
        """Return the plan of what is chosen for all gaps of an order; None where the budget is not met.

        chosen: STAY, SWAP or RECOMPUTE, shape (gaps,), for the gaps that `nothing_chosen` finds; idle_ns as
        of `draft`.  Where that exceeds the budget, greedy choices are added; where these do not suffice, the
        plan with stalls instead of them is made, too, and the faster one returned.
        """
        residency, link, choices = self.nothing_chosen(order, way, idle_ns)
        choices.take(chosen)
        hides = choices.meet_budget()
        draft = self._as_draft(residency, link, way, hides, choices.take_back())
        best = None if draft is None else self._in_step(draft)[0]
        if hides:
            return best
        residency, link, choices = self.nothing_chosen(order, way, idle_ns)
        draft = self._as_draft(residency, link, way, False, choices.take(chosen))
        return best if draft is None else faster(best, self._in_step(draft)[0])

    def by_swaps(self, order: tuple[OpId, ...]) -> Made:
        """Return the plan of one pass of swaps, which meets every budget from the bound on."""
        residency = Residency(self._request.graph, self._request.latencies_ns, order)
        met = evict_furthest(residency, self._budget_nbytes)
        assert met, "no op needs more than the bound"
        link = Link(self._device, self._sharers)
        draft = Draft(residency=residency, link=link, way=USUAL_WAY, hides=False, least_ns=self.ops_ns)
        return self._in_step(draft)[0]

    def draft(
        self, order: tuple[OpId, ...], way: Way, idle_ns: NDArray[np.int64] | None = None
    ) -> Draft | None:
        """Choose what meets the budget; None where recomputation leaves it out of reach.

        idle_ns: how long each op stalls beforehand, which is time for copies; shape (ops,).
        """
        residency, link, choices = self.nothing_chosen(order, way, idle_ns)
        hides = choices.meet_budget()
        recompute_ns = choices.take_back()
        return self._as_draft(residency, link, way, hides, recompute_ns)

    def nothing_chosen(
        self, order: tuple[OpId, ...], way: Way, idle_ns: NDArray[np.int64] | None = None
    ) -> tuple[Residency, Link, Choices]:
        """Return what choosing in an order and a way begins with; idle_ns as of `draft`."""
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

    def in_rounds(self, draft: Draft) -> Made:
        """Return the draft's plan, or a faster one that comes of drafting again with its stalls."""
        best, timeline = self._in_step(draft)
        for _ in range(_ROUNDS - 1):
            if draft.hides:
                break
            again = self.draft(draft.residency.table.order, draft.way, timeline.idle_before_ns())
            if again is None:
                break
            draft = again
            made, timeline = self._in_step(draft)
            gained_ns = best.period_ns - made.period_ns
            best = faster(best, made)
            if gained_ns < _WORTH_A_ROUND * self.ops_ns:
                break
        return best

    def relieved(self, made: Made, *, efforts: int = 1) -> Made:
        """Return a plan with fewer stalls than this one, or the same; each effort takes up to 2 s.

        Changes the draft: what is returned may be relieved further, `made` may not.  The device has a channel
        for each direction.
        """
        draft = made.draft
        if draft is None:
            return made
        relief = Relief(draft.residency, draft.link, self._settled, self._budget_nbytes)
        plan, timeline = relief.relieve(efforts)
        return faster(made, replace(made, plan=plan, period_ns=timeline.period_ns))

    def at_once(self, draft: Draft) -> Made:
        """Return the draft's plan, as it is where its copies hide; else put in step with its timeline."""
        if not draft.hides:
            return self._in_step(draft)[0]
        residency = draft.residency
        return_earlier(residency, draft.link, self._budget_nbytes)
        await_later(residency, residency.peak_nbytes)
        plan, timeline = self._settled(assemble(residency, "auto"))
        if timeline.period_ns <= GOOD_ENOUGH * draft.least_ns:
            return Made(plan=plan, period_ns=timeline.period_ns, way=draft.way, draft=draft)
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
        made = Made(plan=plan, period_ns=timeline.period_ns, way=draft.way, draft=draft)
        return self._urgent_first(draft, made, timeline) if self._device.duplex else (made, timeline)

    def _urgent_first(self, draft: Draft, made: Made, timeline: Timeline) -> tuple[Made, Timeline]:
        """Let copies back pass that ops wait for, as long as that makes the draft's plan faster."""
        least_ns = int(self.ops_ns * _WORTH_PASSING)
        changes = Changes(draft.residency)
        for _ in range(_ROUNDS):
            if not let_urgent_pass(changes, timeline, least_ns=least_ns):
                break
            plan, passed = self._settled(assemble(draft.residency, "auto"))
            if passed.period_ns >= made.period_ns:
                changes.undo()
                break
            changes.keep()
            made, timeline = replace(made, plan=plan, period_ns=passed.period_ns), passed
        return made, timeline

    def _settled(self, plan: Plan, *, first_within_ns: int | None = None) -> tuple[Plan, Timeline]:
        request = self._request
        return simulate_settled(
            request.graph, request.latencies_ns, plan, self._device, first_within_ns=first_within_ns
        )
