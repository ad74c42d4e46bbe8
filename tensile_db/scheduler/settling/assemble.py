"""From absences to a plan: events, their triggers, and the waits that guarantee the budget.

Source: TENSILE section III-A (an event is triggered some time after an access) and III-D (the executor checks
that a swap-out has ended before it releases).
Differs: the paper checks at every release; here a wait stands as late as the budget allows, so that a late
copy stalls ops only when memory is really short.
"""

from dataclasses import dataclass, replace
from operator import itemgetter

from tensile_db.graph import OpId
from tensile_db.scheduler.analysis.accesses import AccessTable
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.plan import Event, Plan, Recompute, Release, SwapIn, SwapOut, Wait

#: Position of the trigger, whether to the device, delay, tensor.
_PlaceOfCopy = tuple[int, bool, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _EventsOfOne:
    """The events of one absence, each with its place."""

    #: Kept, for it is known by its id.
    absence: Absence
    copies: tuple[tuple[_PlaceOfCopy, SwapOut | SwapIn], ...]
    #: The wait for its departure, or its release.
    other: tuple[tuple[int, int], Event]
    #: Position of the op before which, position of the last op that runs again, and the event; None: a swap.
    recompute: tuple[int, int, Recompute] | None


def return_earlier(residency: Residency, link: Link, budget_nbytes: int) -> None:
    """Use what the budget leaves to bring tensors back earlier."""
    for absence in _swaps(residency):
        earlier = _returned_earlier(residency, link, absence, budget_nbytes)
        if earlier is not absence:
            residency.replace(absence, earlier)


def await_later(residency: Residency, peak_nbytes: int) -> None:
    """Wait for departures as late as this peak allows."""
    for absence in _swaps(residency):
        later = _awaited_later(residency, absence, peak_nbytes)
        if later is not absence:
            residency.replace(absence, later)


def assemble(residency: Residency, policy: str) -> Plan:
    """Return the plan of what is away, as an `Assembler` makes it."""
    return Assembler(residency, policy).plan()


class Assembler:
    """Makes plans of one residency, as it is each time; absences that are as before cost little."""

    def __init__(self, residency: Residency, policy: str) -> None:
        self._residency = residency
        self._policy = policy
        #: By the id of its absence, for to hash one goes through all its fields; the absence is kept, so that
        #: its id stays its own.
        self._known: dict[int, _EventsOfOne] = {}

    def plan(self) -> Plan:
        """Return the plan of what is away now.

        Copies are listed by trigger, then to the host first, then by delay.
        """
        residency, known = self._residency, self._known
        table = residency.table
        copies: list[tuple[_PlaceOfCopy, SwapOut | SwapIn]] = []
        #: By place: position, then tensor.
        others: list[tuple[tuple[int, int], Event]] = self._releases()
        recomputes: list[tuple[int, int, Recompute]] = []
        for absences in residency.absences.values():
            for absence in absences:
                made = known.get(id(absence))
                if made is None:
                    made = known[id(absence)] = _events_of(residency, absence)
                others.append(made.other)
                copies += made.copies
                if made.recompute is not None:
                    recomputes.append(made.recompute)
        copies.sort(key=itemgetter(0))
        # What is recomputed before the same op comes in the order of its making: the later may read the
        # earlier.
        recomputes.sort(key=itemgetter(0, 1))
        last_of_all = len(residency.graph.tensors)
        others += [((before, last_of_all), recompute) for before, _, recompute in recomputes]
        others.sort(key=itemgetter(0))
        return Plan(
            policy=self._policy,
            order=table.order,
            events=(*map(itemgetter(1), copies), *map(itemgetter(1), others)),
        )

    def _releases(self) -> list[tuple[tuple[int, int], Event]]:
        """Return the releases after last accesses, by place."""
        residency = self._residency
        table, order = residency.table, residency.table.order
        releases = _releases_of(table)
        later = {
            tensor: needed[-1]
            for tensor, needed in residency.needed.items()
            if needed and needed[-1] > table.last[tensor] and not residency.graph.tensors[tensor].persistent
        }
        if not later:
            return list(releases)
        return [
            *(release for release in releases if release[0][1] not in later),
            *(
                ((last, tensor), Release(tensor=tensor, after_op=order[last]))
                for tensor, last in later.items()
            ),
        ]


def _events_of(residency: Residency, absence: Absence) -> _EventsOfOne:
    order, tensor = residency.table.order, absence.tensor
    if absence.recompute:
        left = absence.gap.previous
        before, ops = order[absence.end], absence.recompute
        again = Recompute(tensor=tensor, before_op=before, ops=ops)
        return _EventsOfOne(
            absence=absence,
            copies=(),
            other=((left, tensor), Release(tensor=tensor, after_op=order[left])),
            recompute=(absence.end, residency.position[ops[-1]], again),
        )
    wait = Wait(tensor=tensor, before_op=_op_at(order, absence.begin))
    out_ns, in_ns = absence.out_delta_ns, absence.in_delta_ns
    out = SwapOut(tensor=tensor, trigger_op=order[absence.out_position], delta_ns=out_ns)
    trigger = _trigger_of_return(absence)
    back = SwapIn(tensor=tensor, trigger_op=None if trigger < 0 else order[trigger], delta_ns=in_ns)
    return _EventsOfOne(
        absence=absence,
        copies=(
            ((absence.out_position, False, out_ns, tensor), out),
            ((trigger, True, in_ns, tensor), back),
        ),
        other=((absence.begin, tensor), wait),
        recompute=None,
    )


@once_for_each
def _releases_of(table: AccessTable) -> list[tuple[tuple[int, int], Event]]:
    """Return the releases of an order in which nothing is away, by place."""
    return sorted(
        (
            ((last, tensor.id), Release(tensor=tensor.id, after_op=table.order[last]))
            for tensor, last in zip(table.graph.tensors, table.last.tolist(), strict=True)
            if not tensor.persistent and last >= 0
        ),
        key=itemgetter(0),
    )


def _swaps(residency: Residency) -> list[Absence]:
    """Return the swaps in the order in which their tensors come back."""
    return sorted(residency.swaps(), key=lambda a: (a.gap.following % a.gap.ops, a.tensor))


def _returned_earlier(residency: Residency, link: Link, absence: Absence, budget_nbytes: int) -> Absence:
    """Trigger a copy back that would stall op by op earlier, until it has its time twice over or memory ends.

    What hides already stays: copies that start sooner would delay others in their channel.
    """
    nbytes = residency.graph.tensors[absence.tensor].nbytes
    ops = absence.gap.ops
    copy_ns = link.in_ns(nbytes)
    arrive_ns = int(residency.begin_ns[absence.gap.following % ops])
    first, end = absence.first_end, absence.end
    while end > first:
        if end == absence.end:
            ready_ns, enough_ns = int(residency.end_ns[(end - 1) % ops]) + absence.in_delta_ns, copy_ns
        else:
            ready_ns, enough_ns = int(residency.end_ns[(end - 1) % ops]), 2 * copy_ns
        if arrive_ns - ready_ns >= enough_ns:
            break
        if residency.footprint[(end - 1) % ops] + nbytes > budget_nbytes:
            break
        end -= 1
    return absence if end == absence.end else replace(absence, end=end, in_delta_ns=0)


def _awaited_later(residency: Residency, absence: Absence, peak_nbytes: int) -> Absence:
    """Wait as many ops later as the footprint with the tensor still held is within the peak."""
    nbytes = residency.graph.tensors[absence.tensor].nbytes
    limit = min(absence.end, absence.gap.ops)
    above = residency.footprint[absence.begin : limit] > peak_nbytes - nbytes
    begin = absence.begin + int(above.argmax()) if above.any() else max(absence.begin, limit)
    return absence if begin == absence.begin else replace(absence, begin=begin)


def _trigger_of_return(absence: Absence) -> int:
    """Return the position whose end triggers the copy back; -1 is the iteration's start."""
    return absence.end - 1 - (absence.gap.ops if absence.end >= absence.gap.ops else 0)


def _op_at(order: tuple[OpId, ...], position: int) -> OpId | None:
    return order[position] if position < len(order) else None
