"""Which worker a job goes to, where several serve one database.

Every worker works this out from the same rows and takes what is its own, so that nobody has to decide for the
others, and none is needed for the others to go on.  Jobs are placed one after another in the order of the
line, each where it is best off once those before it have gone where they go:

1. A device that is too small for it, as far as is known, is never its own; one that probably is comes last.
2. A job that has begun goes on where its rows are: read anew they may be others, and it would start over.
3. A worker where it would run at once comes before one where it would wait, or leave others less memory
   than they and it want.
4. The least load: jobs held, over the device's speed; rows that would have to be read again count as a job.
5. The smallest device that has room for it, or the largest where its size is unknown.

A job that waits in line at a worker stays there, unless another one would run it at once.  That one is
written down: by the ranking alone the job might come back to the faster worker at which it has waited, and so
for ever.  tests/unit/scheduler/test_placing_over_time.py tries to refute that moves come to an end.  A job
that has begun leaves its rows for nobody.

Source: ours.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a live worker has for jobs."""

    worker: int
    #: The device's name, which a job may ask for.
    device: str
    #: Where it keeps rows that were read: machine and folder.
    cache: str
    memory_nbytes: int
    #: Of it, what the shares of its jobs take.
    shared_nbytes: int = 0
    #: Jobs that take one of its places.
    held: int = 0
    #: Of these, jobs that have no share yet, and it is not known whether they will wait for one.
    preparing: int = 0
    #: Of these, jobs that wait in line for memory.
    in_line: int = 0
    #: How many it may hold.
    places: int
    #: It runs one job at a time.
    alone: bool = False
    #: Sustained rate of the device's arithmetic.
    flops_per_s: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What is known of a job that waits for a worker, or in line at one."""

    job: int
    #: The name of the device that it asks for, if it does.
    device: str | None = None
    #: A smaller device has refused it for this least.
    least_nbytes: int = 0
    #: The same of a job like it, which it need not be quite.
    likely_least_nbytes: int = 0
    #: What it would hold if it could have it all; None: unknown.
    wanted_nbytes: int | None = None
    #: Who has its rows.
    caches: frozenset[str] = frozenset()
    #: It goes on from a checkpoint.
    begun: bool = False
    #: Of those that a worker has; a search takes none, but comes only where there is one.
    takes_place: bool = True
    #: Also where all places are taken.
    always_comes: bool = False
    #: The worker that holds it in line; None: nobody holds it.
    line_of: int | None = None
    #: The worker for which another has given it back.
    meant_for: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a job belongs at present."""

    job: int
    worker: int
    #: The worker that holds it in line.
    line_of: int | None

    @property
    def moves(self) -> bool:
        """Whether it waits where it does not belong."""
        return self.line_of is not None and self.line_of != self.worker


def can_ever_take(need: Need, *, device: str, memory_nbytes: int) -> bool:
    """Whether nothing that is known keeps the job from a device of this name and memory."""
    return need.device in (None, device) and need.least_nbytes <= memory_nbytes


def only_these_would_do(need: Need, these: Iterable[Offer], others: Iterable[Offer]) -> bool:
    """Whether one of these devices is likely to be large enough for the job, and none of the others is."""

    def would_do(offer: Offer) -> bool:
        can_take = can_ever_take(need, device=offer.device, memory_nbytes=offer.memory_nbytes)
        return can_take and need.likely_least_nbytes <= offer.memory_nbytes

    return any(map(would_do, these)) and not any(map(would_do, others))


def place(needs: Sequence[Need], offers: Iterable[Offer]) -> tuple[Placement, ...]:
    """Return where each job belongs; needs: in the order of the line.

    Jobs that nobody can take now are left out.  Equal inputs give equal placements, in whatever order the
    offers come.
    """
    seats = {offer.worker: _Seat(offer) for offer in offers}
    placed: list[Placement] = []
    for need in needs:
        seat = _best(need, seats) if need.line_of is None else _better(need, seats, holder=need.line_of)
        if seat is not None:
            seat.take(need)
            placed.append(Placement(job=need.job, worker=seat.offer.worker, line_of=need.line_of))
    return tuple(placed)


class _Seat:
    """A worker with the jobs that have been placed there so far."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.held = offer.held
        self.preparing = offer.preparing
        self.in_line = offer.in_line
        self.shared_nbytes = offer.shared_nbytes

    def can_take(self, need: Need) -> bool:
        """Whether the job can come here now."""
        offer = self.offer
        has_place = need.always_comes or self.held < offer.places
        return has_place and can_ever_take(need, device=offer.device, memory_nbytes=offer.memory_nbytes)

    def is_free(self) -> bool:
        """Whether nobody holds anything of the device, nor is about to."""
        return self.held == 0 and self.shared_nbytes == 0

    def makes_wait(self, need: Need) -> bool:
        """Whether it is known that the job would wait here, or not have all the memory that it wants."""
        if self.is_free():
            return False
        return self.in_line > 0 or self.offer.alone or not self._has_room(need, unless_known=True)

    def runs_at_once(self, need: Need) -> bool:
        """Whether it is known that the job would run here at once."""
        if self.is_free():
            return True
        is_settled = self.in_line == 0 and self.preparing == 0 and not self.offer.alone
        return is_settled and self._has_room(need, unless_known=False)

    def take(self, need: Need) -> None:
        """Let the job come."""
        self.held += need.takes_place
        if need.line_of == self.offer.worker:
            self.in_line += 1
        elif need.wanted_nbytes is not None:
            self.shared_nbytes += need.wanted_nbytes
        elif need.takes_place:
            self.preparing += 1

    def leave(self, need: Need) -> None:
        """Let a job go that waits in line."""
        self.held -= need.takes_place
        self.in_line -= 1

    def _has_room(self, need: Need, *, unless_known: bool) -> bool:
        if need.wanted_nbytes is None:
            return unless_known
        return self.shared_nbytes + need.wanted_nbytes <= self.offer.memory_nbytes


def _best(need: Need, seats: dict[int, _Seat]) -> _Seat | None:
    """Return the best place of a job that nobody holds."""
    meant = None if need.meant_for is None else seats.get(need.meant_for)
    if meant is not None and meant.can_take(need):
        return meant
    return min((seat for seat in seats.values() if seat.can_take(need)), key=_rank(need), default=None)


def _better(need: Need, seats: dict[int, _Seat], *, holder: int) -> _Seat | None:
    """Return where a job in line would run at once, or else its holder; None where that is not among them."""
    here = seats.get(holder)
    if here is None:
        return None
    here.leave(need)
    # It fits alone where it waits; elsewhere that must be as sure.
    enough_nbytes = here.offer.memory_nbytes
    if need.wanted_nbytes is not None:
        enough_nbytes = min(enough_nbytes, need.wanted_nbytes)
    better = (
        seat
        for seat in seats.values()
        if seat is not here
        and seat.can_take(need)
        and seat.runs_at_once(need)
        and seat.offer.memory_nbytes >= enough_nbytes
        and (not need.begun or seat.offer.cache in need.caches)
    )
    return min(better, key=_rank(need), default=here)


#: Less is better.
_Rank = tuple[bool, bool, bool, float, bool, int, int]


def _rank(need: Need) -> Callable[[_Seat], _Rank]:
    """Return the order of places for a job, the best first."""

    def rank(seat: _Seat) -> _Rank:
        offer = seat.offer
        has_rows = offer.cache in need.caches
        load = seat.held + 1 + (1 if need.caches and not has_rows else 0)
        return (
            need.likely_least_nbytes > offer.memory_nbytes,
            need.begun and not has_rows,
            seat.makes_wait(need),
            load / max(1, offer.flops_per_s),
            (need.wanted_nbytes or 0) > offer.memory_nbytes,
            -offer.memory_nbytes if need.wanted_nbytes is None else offer.memory_nbytes,
            offer.worker,
        )

    return rank
