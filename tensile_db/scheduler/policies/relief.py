"""Stalls taken out of one plan, a change at a time, each judged by the plan's own timeline.

Where memory is so short that ops must wait for copies, what is chosen depends on estimates of how long they
will.  Here tensors stay first that there is room for.  Then the longest wait of the timeline is looked at:
the copy that an op waits for, and those that the channel served right before it.  Each of these tensors may
come back earlier, let the one pass that is waited for, leave earlier, or stay, where others leave with less
waiting.  A change that makes the iteration shorter is kept, and the longest wait is looked at anew.

Source: ours; docs/planner/auto.md, "Relief".
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from itertools import islice
from typing import Protocol, assert_never

from tensile_db.errors import InvalidPlan
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.changes import Changes
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.choosing.passive import FIRST_CANDIDATES, evict_at
from tensile_db.scheduler.plan import Plan
from tensile_db.scheduler.settling.assemble import Assembler
from tensile_db.scheduler.settling.copied import Copied, copies_of
from tensile_db.scheduler.settling.urgency import is_triggered_later, triggered_behind
from tensile_db.scheduler.simulation import TooSlow
from tensile_db.scheduler.timeline import Timeline

#: In one effort plans are simulated until so many runs of ops have been, which took 1 to 2 s of a core.  A
#: copy takes the time of so many runs, and so does looking for what could leave instead of a tensor.
_RUNS_AN_EFFORT = 700_000
_RUNS_A_COPY = 4
_RUNS_A_LOOK = 600
#: Of copies that the channel served without a break, the last so many are looked at.
_IN_LINE = 6
#: Shorter waits are not looked at: there is nothing to gain that would be worth a simulation.
_LEAST_WAIT_NS = 2000
#: Peaks above the budget that others are taken off for once a tensor stays; with more, it does not.
_MOST_PEAKS = 16
#: All waits are looked at again where that has saved at least this share of the time.
_WORTH_A_ROUND = 0.002


class _Settle(Protocol):
    """Settles a plan; returns it with its timeline.  Raises InvalidPlan and TooSlow (`simulate_settled`)."""

    def __call__(self, plan: Plan, *, first_within_ns: int | None = None) -> tuple[Plan, Timeline]: ...


class _Remedy(Enum):
    """What may be done about a swap, in the order in which it is tried."""

    #: It comes back as early as memory allows, or half-way there.
    RETURN_EARLIEST = auto()
    RETURN_EARLIER = auto()
    #: Its copy back lets the one pass that is waited for.
    LET_PASS = auto()
    #: It leaves as early as it can.
    LEAVE_EARLIEST = auto()
    #: It does not leave; others do.
    STAY = auto()


class Relief:
    """Takes stalls out of the plan of one residency, on a device with a channel for each direction."""

    def __init__(self, residency: Residency, link: Link, settle: _Settle, budget_nbytes: int) -> None:
        """residency: is changed, and what it is left as may be relieved further."""
        self._residency = residency
        self._link = link
        self._settle = settle
        self._budget_nbytes = budget_nbytes
        self._changes = Changes(residency)
        self._assembler = Assembler(residency, "auto")
        self._plan, self._timeline = settle(self._assembler.plan())
        self._runs_left = 0

    def relieve(self, efforts: int) -> tuple[Plan, Timeline]:
        """Return the plan that is left when nothing more is found to change, and its timeline.

        efforts: how much time it may take; then it ends before that.
        """
        self._runs_left = efforts * _RUNS_AN_EFFORT
        while self._runs_left > 0:
            before_ns = self._timeline.period_ns
            self._let_stay()
            self._shorten_waits()
            if before_ns - self._timeline.period_ns < _WORTH_A_ROUND * before_ns:
                break
        return self._plan, self._timeline

    def _let_stay(self) -> None:
        """Keep tensors on the device that there is room for, the largest first."""
        tensors = self._residency.graph.tensors
        swaps = self._residency.swaps()
        for absence in sorted(swaps, key=lambda a: (-tensors[a.tensor].nbytes, a.tensor, a.gap.previous)):
            if self._runs_left <= 0:
                break
            self._changes.remove(absence)
            self._judge(longest_ns=self._timeline.period_ns)

    def _shorten_waits(self) -> None:
        """Try each remedy once for each swap that has to do with a wait, the longest wait first."""
        tried: set[tuple[_Remedy, Gap]] = set()
        while any(self._improve(line, tried) for line in list(self._lines())):
            pass

    def _improve(self, line: Sequence[Copied], tried: set[tuple[_Remedy, Gap]]) -> bool:
        """Make the first change of a line that shortens the iteration; return whether there is one."""
        for copied in line:
            for remedy in _Remedy:
                key = (remedy, copied.absence.gap)
                if self._runs_left <= 0:
                    return False
                if key not in tried and self._change(remedy, copied, line[0]):
                    tried.add(key)
                    if self._judge(longest_ns=self._timeline.period_ns - 1):
                        return True
        return False

    def _lines(self) -> Iterator[list[Copied]]:
        """Yield what ops wait for, the longest wait first: the copy and those right before it, backwards."""
        copies = [each for each in copies_of(self._residency, self._timeline) if each.end_ns > each.begin_ns]
        #: Of each direction, the copies in order, and their places by the time of their ends.
        channels = [[each for each in copies if each.to_host is to_host] for to_host in (False, True)]
        ending = [{each.end_ns: place for place, each in enumerate(channel)} for channel in channels]
        runs = self._timeline.runs
        waited_ns = runs[1:, 1] - runs[:-1, 2]
        waits: list[int] = (waited_ns > _LEAST_WAIT_NS).nonzero()[0].tolist()
        for wait in sorted(waits, key=lambda wait: (-waited_ns[wait], wait)):
            until_ns = int(runs[wait + 1, 1])
            for channel, places in zip(channels, ending, strict=True):
                place = places.get(until_ns)
                if place is not None:
                    yield _line_up_to(channel, place)
                    break

    def _change(self, remedy: _Remedy, copied: Copied, awaited: Copied) -> bool:
        """Change a swap; return whether there is anything to change about it."""
        old = copied.absence
        match remedy:
            case _Remedy.RETURN_EARLIEST:
                new = replace(old, end=self._earliest_end(old), in_delta_ns=0)
            case _Remedy.RETURN_EARLIER:
                earliest = self._earliest_end(old)
                new = replace(old, end=(earliest + old.end) // 2, in_delta_ns=0)
                if not earliest < new.end < old.end:
                    return False
            case _Remedy.LET_PASS:
                new = triggered_behind(old, awaited.absence)
                passes = not awaited.to_host and is_triggered_later(new, old)
                if not (passes and new.begin < new.end <= new.gap.following):
                    return False
            case _Remedy.LEAVE_EARLIEST:
                new = replace(old, out_position=old.gap.previous, out_delta_ns=0)
            case _Remedy.STAY:
                self._changes.remove(old)
                self._take_others_off(old)
                return True
            case _:
                assert_never(remedy)
        if new == old:
            return False
        self._changes.replace(old, new)
        return True

    def _judge(self, *, longest_ns: int) -> bool:
        """Keep what has changed if memory suffices and the iteration takes no longer than this.

        Else take it back.  Returns whether it is kept.
        """
        if self._residency.peak_nbytes <= self._budget_nbytes:
            self._runs_left -= len(self._timeline.runs) + _RUNS_A_COPY * len(self._timeline.moves)
            # A first iteration may take longer than those after it, but then it did before the change, too.
            first_within_ns = max(longest_ns, self._timeline.first_ns)
            # The copies of one tensor may get into each other's way.
            with suppress(InvalidPlan, TooSlow):
                plan, timeline = self._settle(self._assembler.plan(), first_within_ns=first_within_ns)
                if timeline.period_ns <= longest_ns:
                    self._plan, self._timeline = plan, timeline
                    self._changes.keep()
                    return True
        self._changes.undo()
        return False

    def _earliest_end(self, absence: Absence) -> int:
        """Return the first position, unrolled, from which on there is room for the tensor.

        Unlike `return_earlier`, however much time its copy has already.
        """
        nbytes = self._residency.graph.tensors[absence.tensor].nbytes
        ops, footprint = absence.gap.ops, self._residency.footprint
        first, end = absence.first_end, absence.end
        while end > first and footprint[(end - 1) % ops] + nbytes <= self._budget_nbytes:
            end -= 1
        return end

    def _take_others_off(self, kept: Absence) -> None:
        """Take off, where memory is short now that a tensor stays, what stalls least."""
        residency = self._residency
        for _ in range(_MOST_PEAKS):
            position = residency.peak_position
            if residency.footprint[position] <= self._budget_nbytes:
                break
            held = (tensor for tensor in residency.held_at(position) if tensor != kept.tensor)
            tensors = list(islice(held, FIRST_CANDIDATES))
            self._runs_left -= _RUNS_A_LOOK
            if not evict_at(
                residency, self._link, position, self._budget_nbytes, tensors, changes=self._changes
            ):
                break


def _line_up_to(channel: Sequence[Copied], place: int) -> list[Copied]:
    """Return a copy, then those that its channel served before it without a break, the last one first."""
    line = [channel[place]]
    while place and channel[place - 1].end_ns == line[-1].begin_ns and len(line) < _IN_LINE:
        place -= 1
        line.append(channel[place])
    return line
