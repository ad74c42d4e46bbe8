"""Search for a faster plan of a job whose ops stall: choices by estimates, then relief by its timeline.

Searches take part of what ops wait in the plan for time that copies have.  How large a part leads furthest
depends on the job, and where one search ends on a nanosecond.  Therefore each round has several, each with
another part, and relieves only what promises most.

Source: ours; docs/planner/auto.md, "Rounds".
"""

from operator import attrgetter

import numpy as np

from tensile_db.graph import OpId
from tensile_db.scheduler.choosing.course import Course
from tensile_db.scheduler.choosing.gaps import chosen_in
from tensile_db.scheduler.choosing.search import search
from tensile_db.scheduler.policies.attempts import Planner
from tensile_db.scheduler.policies.drafts import Drafter, Made, faster

#: By what plans are compared.
_PERIOD = attrgetter("period_ns")
#: Jobs of more ops are not searched for: there is too much to choose from for the time that a search takes at
#: most.
SEARCHED_OPS = 5000
#: Those of no more are searched for several times.
SEARCHED_OFTEN_OPS = 3000
#: A plan whose ops wait for longer than this share of their time is relieved, with so many efforts ...
_WORTH_RELIEF = 0.005
_EFFORTS = 2
#: ... and its job is searched for in so many rounds at most.
_ROUNDS = 5
#: What was fastest in each order is relieved, too, where it takes at most so many times the best one's time.
_MAY_END_FASTER = 1.2
#: Parts of a plan's stalls that searches take for time of copies: with all of it there is little to gain,
#: with little of it copies that ops must wait for anyway are not looked at.
_STALLS_LEFT = (0.3, 0.5, 0.7, 0.85, 1.0)
#: Of the looks of a whole search, each has one in so many: several short ones find more than a long one.
_SHORT = 3
#: Of what a round's searches find so many are relieved, the fastest of them longer, and none that takes more
#: than so many times the fastest one's time.
_RELIEVED = 2
_MAY_BE_FASTER = 1.05
#: Rounds are at an end when so many of them in a row have not saved this share of the time.
_IN_VAIN = 2
_WORTH_A_ROUND = 0.005
#: What a round has found is what the next one begins with, unless it takes more than so many times the time
#: of the best plan.
_NOT_FAR = 1.02


class StalledSearch:
    """Of one job within one budget, on a device with a channel for each direction."""

    def __init__(self, drafter: Drafter, budget_nbytes: int, made: Made, *, most_rounds: int) -> None:
        """made: a plan of the job whose ops stall, which is begun with."""
        self.best = made
        self._drafter = drafter
        self._budget_nbytes = budget_nbytes
        #: What the next round begins with.
        self._current = made
        self._rounds = 0
        self._most_rounds = most_rounds
        self._in_vain = 0

    @property
    def is_over(self) -> bool:
        """Whether no further round would be made."""
        return self._rounds == self._most_rounds or self._in_vain == _IN_VAIN

    def go_on(self) -> None:
        """Make rounds until there is an end of them; it takes up to a minute."""
        while self.make_a_round():
            pass

    def make_a_round(self) -> bool:
        """Search once with each part of the stalls, and relieve what promises most; it takes seconds.

        Returns whether a round was made: there is an end of them.
        """
        if self.is_over:
            return False
        before_ns = self.best.period_ns
        found = min(self._relieved(), key=_PERIOD, default=self.best)
        if found is not self.best and found.period_ns <= _NOT_FAR * before_ns:
            found = self._drafter.relieved(found)
        self.best = faster(self.best, found)
        is_near = found.period_ns <= _NOT_FAR * self.best.period_ns
        self._current = found if is_near else self.best
        saves = self.best.period_ns <= (1 - _WORTH_A_ROUND) * before_ns
        self._in_vain = 0 if saves else self._in_vain + 1
        self._rounds += 1
        return True

    def _relieved(self) -> list[Made]:
        """Return what searches of this round find and promises most, each another plan, relieved."""
        likely: list[Made] = []
        for made in sorted(self._found(), key=_PERIOD):
            if len(likely) == _RELIEVED or (likely and made.period_ns > _MAY_BE_FASTER * likely[0].period_ns):
                break
            if all(made.plan != other.plan for other in likely):
                likely.append(made)
        return [self._drafter.relieved(made) for made in likely]

    def _found(self) -> list[Made]:
        """Return what searches make of the plan that this round begins with; none that exceed the budget."""
        order, way = self._current.plan.order, self._current.way
        stalls_ns = self._drafter.idle_before_ns(self._current.plan)
        found = []
        for share in _STALLS_LEFT:
            idle_ns = (stalls_ns * share).astype(np.int64)
            residency, _, choices = self._drafter.nothing_chosen(order, way, idle_ns)
            course = Course(choices.gaps, residency, self._budget_nbytes)
            start = chosen_in(self._current.plan, choices.gaps)
            chosen = search(course, start, (self._rounds,), one_in=_SHORT)
            found.append(self._drafter.with_choices(order, way, chosen, idle_ns))
        return [made for made in found if made is not None]


def begin_with_stalls(planner: Planner, best: Made) -> list[StalledSearch]:
    """Return searches that have made one round: begun with the best plan, relieved, and with a faster one.

    That is the fastest that relief makes of what was tried in each order, if it makes one: what begins faster
    often ends faster, but not always.  Where rounds are not worth their time, the search is at its end.
    What is relieved is not among what was tried any more.
    """
    ops = len(best.plan.order)
    if not planner.device.duplex or ops > SEARCHED_OPS or not stalls(planner, best):
        return [StalledSearch(planner.drafter, planner.budget_nbytes, best, most_rounds=0)]
    likely = [best, *_likely_in_each_order(planner, best)]
    # Relief changes drafts.
    planner.tried = [made for made in planner.tried if all(made.draft is not each.draft for each in likely)]
    relieved = [planner.drafter.relieved(made, efforts=_EFFORTS) for made in likely]
    fastest = min(relieved, key=_PERIOD)
    most_rounds = _ROUNDS if ops <= SEARCHED_OFTEN_OPS else 0
    begun = [relieved[0]] if fastest is relieved[0] else [relieved[0], fastest]
    searches = [
        StalledSearch(planner.drafter, planner.budget_nbytes, made, most_rounds=most_rounds) for made in begun
    ]
    for each in searches:
        each.make_a_round()
    return searches


def _likely_in_each_order(planner: Planner, best: Made) -> list[Made]:
    """Return of each order the fastest plan tried, where relief may make it faster than the best one.

    The longer ops wait, the less tells what plans take before (docs/planner/auto.md, "Relief").
    """
    fastest: dict[tuple[OpId, ...], Made] = {}
    for made in planner.tried:
        if made.draft is not best.draft and made.may_beat(best) and stalls(planner, made):
            order = made.plan.order
            fastest[order] = faster(fastest.get(order), made)
    most_ns = _MAY_END_FASTER * best.period_ns
    return [made for made in fastest.values() if made.period_ns <= most_ns]


def stalls(planner: Planner, made: Made) -> bool:
    """Whether a plan was drafted, and its ops wait so long that it is worth relief."""
    draft = made.draft
    return draft is not None and made.period_ns - draft.least_ns > _WORTH_RELIEF * planner.ops_ns
