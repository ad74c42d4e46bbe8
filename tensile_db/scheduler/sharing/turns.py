"""Who may compute now, and who may hold how much meanwhile.  Pure: no clock, no threads.

A job that has come in always holds its resident part, and what was taken down of an iteration, where its
share has room for that.  It asks for a turn before each iteration and gives it back after its last one; while
it has it, it may hold its ephemeral part too.  Of a lane's jobs only one has a turn.  A job whose state
leaves, and whose share has room for it in transit, goes through these phases:

    away -> approaching -> turn -> leaving -> away
               |                               ^
               +-------------------------------+  it gives up asking

    approaching   the next of its lane: its state is brought in, or there, while another has its turn
    leaving       its turn is over; its state goes, and the next one computes
    lingering     its turn is over; its state is there still, in memory that nobody else has a use for yet

The others are away or have their turn.  A change of shares needs no plan of its own: at a boundary, when the
job is away, it holds its resident and recorded parts only, so it changes these, where there is room, and its
lane at once.
So the jobs' memory never exceeds the device's, in whatever order they come to their boundaries:

    sum of resident and recorded (of a changing job, the larger) + sum of ephemeral of those who have a turn
        + sum of transit of those who approach or leave + what is left of those who linger <= memory

Whose state lingers need not bring it in again for its next turn.  Where somebody waits for memory, for a
turn, an approach or a larger share, states that linger are dismissed, the longest unused first, and leave at
once: only those linger that nobody has written, so that nothing need be copied.  Whoever waits for nothing
else than that has the next turn, and none begins while a larger share does: else those who had turns
meanwhile would linger in its way, one after the other.

Somebody may ask for quiet, in which nobody allocates or frees: then only those who approach get a turn yet,
or waited for theirs through the quiet before; states that linger are dismissed, and when all are away nothing
begins, neither turn nor change nor departure, until the quiet ends.

Nobody waits for ever.  Leaving ends by itself.  Nobody approaches while another job of its lane does or
leaves, nor while anybody waits for memory; so once all have taken up their new shares, which fit together,
there is room for everybody.  Before that: a job that shrinks never waits, for one that is to change gives up
its approach; when all that must shrink have, and the turns by old shares are over, there is room for those
that grow.  Who approaches has the next turn of its lane, so others are passed by one turn at most.

Source: Salus sections 3.3 (lanes, defragmentation at the iteration's end, which costs nothing) and 4.
Differs: the room for an ephemeral part is looked for at each turn, so lanes can be made anew at any boundary.
"""

from tensile_db.scheduler.sharing.member import Member, Phase
from tensile_db.scheduler.sharing.orders import SharingPolicy, Standing, part_of_time
from tensile_db.scheduler.sharing.share import Share


class Turns:
    """The jobs on one device, by id.  Every method keeps `validate` true."""

    def __init__(self, *, memory_nbytes: int, policy: SharingPolicy) -> None:
        self.memory_nbytes = memory_nbytes
        self._policy = policy
        self._members: dict[int, Member] = {}
        self._arrivals = 0
        self._turns_ended = 0
        self._dismissed: list[int] = []
        #: How many wait for quiet, and whether there is.
        self._quiet_asked = 0
        self.is_quiet = False

    @property
    def held_nbytes(self) -> int:
        """The most that the jobs may hold at this moment, in bytes."""
        return sum(member.always_nbytes + member.beyond_nbytes for member in self._members.values())

    def has_turn(self, job: int) -> bool:
        """Whether the job may compute."""
        return job in self._members and self._members[job].has_turn

    def phase_of(self, job: int) -> Phase:
        """Return where the job is between two turns."""
        return self._members[job].phase

    def asks(self, job: int) -> bool:
        """Whether the job wants a turn that it has not had yet."""
        return self._members[job].asks

    def share_of(self, job: int) -> Share:
        """Return the share that the job holds."""
        return self._members[job].share

    def come_in(self, job: int, *, priority: int = 0, lane: int = 0, serves: bool = False) -> None:
        """Take a job in, which holds nothing yet.

        It counts as served like the one of the others, later of its lane, that was least: what went before is
        not made up for.
        """
        assert job not in self._members, f"job {job} is in already"
        self._arrivals += 1
        standing = Standing(number=self._arrivals, priority=priority, serves=serves)
        nothing = Share(lane=lane, resident_nbytes=0, ephemeral_nbytes=0)
        member = Member(standing=standing, share=nothing)
        self._count_like_the_least(list(self._members.values()), member)
        self._members[job] = member

    def ask_for_quiet(self) -> None:
        """Somebody, in or not, wants that nobody is at work."""
        self._quiet_asked += 1

    def begin_quiet(self) -> bool:
        """Begin a quiet that was asked for; return False where somebody is at work yet."""
        members = self._members.values()
        self._dismiss(self.memory_nbytes)
        if self.is_quiet or any(m.phase is not Phase.AWAY or m.becoming for m in members):
            return False
        if any(m.departs or m.frees for m in members):
            return False
        if any(m.asks and m.waited_through_quiet for m in members):
            return False
        self.is_quiet = True
        return True

    def end_quiet(self) -> None:
        """Whoever had it is done."""
        assert self.is_quiet, "there is no quiet to be ended"
        self._quiet_asked, self.is_quiet = self._quiet_asked - 1, False
        for member in self._members.values():
            member.waited_through_quiet = member.asks

    def withdraw_quiet(self) -> None:
        """Somebody who asked for quiet wants it no more."""
        self._quiet_asked -= 1

    def begin_change(self, job: int, share: Share) -> bool:
        """Make room for a job's new share; return False where there is none yet.  The job is away."""
        if self.is_quiet:
            return False
        member = self._members[job]
        assert member.phase is Phase.AWAY, f"job {job} changes its share while it is {member.phase}"
        assert share.budget_nbytes <= self.memory_nbytes, "no share exceeds the memory"
        before, member.becoming = member.becoming, share
        # One that holds no more than before is always let through.
        if share.always_nbytes > member.share.always_nbytes and self.held_nbytes > self.memory_nbytes:
            self._dismiss(self.held_nbytes - self.memory_nbytes)
            member.becoming, member.awaited = before, share
            return False
        member.awaited = None
        return True

    def end_change(self, job: int) -> None:
        """The job holds its new share, and no more than that."""
        member = self._members[job]
        assert member.becoming is not None, f"job {job} changes nothing"
        if member.becoming.lane != member.share.lane or member.share.budget_nbytes == 0:
            # Lanes have had more or less of the time, which is not made up for either.
            self._count_like_the_least(self._others(job, member.becoming.lane), member)
        member.share, member.becoming = member.becoming, None

    def ask(self, job: int, *, left_ns: int, ahead: bool = False) -> None:
        """The job wants a turn.

        left_ns: what it has still to do, predicted.
        ahead: its state can be brought in before, if its share has room for it in transit.
        """
        member = self._members[job]
        member.standing.left_ns = left_ns
        member.asks = not member.has_turn
        member.comes_ahead = ahead and member.share.transit_nbytes > 0

    def withdraw(self, job: int) -> None:
        """The job wants no turn, nor a larger share; if it approaches, it must tell when it is `gone`."""
        member = self._members[job]
        member.asks, member.was_refused, member.awaited = False, False, None

    def gone(self, job: int) -> None:
        """A job that leaves or lingers, or that gave up its approach, holds its resident part alone."""
        member = self._members[job]
        assert not member.has_turn, f"job {job} has its turn"
        assert member.phase is not Phase.APPROACHING or not member.asks, f"job {job} is still to come"
        member.phase, member.lingering_nbytes = Phase.AWAY, 0
        self._forget_dismissed(job)

    def take_dismissed(self) -> int | None:
        """Return whose state is to leave next that lingered, each once; it tells when it is `gone`."""
        return self._dismissed.pop(0) if self._dismissed and not self.is_quiet else None

    def dismiss(self, job: int) -> None:
        """A job's own state is to leave, if it lingers."""
        if self._members[job].phase is Phase.LINGERING:
            self._members[job].phase = Phase.LEAVING
            self._dismissed.append(job)

    def grant(self) -> list[int]:
        """Give turns to those who ask and can have one, and return them, the most deserving first.

        Then let the states of those approach whose turns are the next ones, where there is room.
        """
        granted: list[int] = []
        if self.is_quiet or any(m.awaited and self._waits_for_lingering(m) for m in self._members.values()):
            return granted
        for job in self._asking():
            member = self._members[job]
            if self._quiet_asked and not (member.phase is Phase.APPROACHING or member.waited_through_quiet):
                continue
            if self._holder(member.share.lane) is not None:
                continue
            if member.phase is Phase.LEAVING:
                # Dismissed, and about to be gone.
                break
            needed_nbytes = self.held_nbytes - member.beyond_nbytes + member.share.ephemeral_nbytes
            if needed_nbytes > self.memory_nbytes:
                self._dismiss(needed_nbytes - self.memory_nbytes, but=job)
                member.was_refused = True
                # Only while shares change, or states leave.  Others would take what it waits for.
                break
            member.phase, member.asks, member.lingering_nbytes = Phase.TURN, False, 0
            member.was_refused = member.waited_through_quiet = False
            granted.append(job)
        if not self._quiet_asked:
            self._begin_approaches()
        return granted

    def is_wanted(self, job: int) -> bool:
        """Whether someone else waits for the job's turn to end."""
        lane = self._members[job].share.lane
        return self._quiet_asked > 0 or any(
            member.asks and member.share.lane == lane for member in self._members.values()
        )

    def is_wanted_to_serve(self, job: int) -> bool:
        """Whether someone waits for the job's turn for whom it may end early: who serves, or wants quiet."""
        lane = self._members[job].share.lane
        return self._quiet_asked > 0 or any(
            member.asks and member.standing.serves and member.share.lane == lane
            for member in self._members.values()
        )

    def serve(self, job: int, took_ns: int) -> None:
        """Count device time that the job has had."""
        self._members[job].standing.served_ns += took_ns

    def end(self, job: int, *, lingering_nbytes: int = 0) -> None:
        """The job's turn is over; it holds what it always may, and what leaves until that is `gone`.

        lingering_nbytes: what of its state stays beyond until somebody needs the room.
        """
        member = self._members[job]
        assert lingering_nbytes <= member.share.ephemeral_nbytes, f"job {job} would hold more than its share"
        assert not (lingering_nbytes and member.share.transit_nbytes), f"job {job} lingers in transit"
        self._turns_ended += 1
        if lingering_nbytes:
            member.phase = Phase.LINGERING
            member.lingering_nbytes, member.lingers_since = lingering_nbytes, self._turns_ended
        else:
            member.phase = Phase.LEAVING if member.share.transit_nbytes else Phase.AWAY

    def set_priority(self, job: int, priority: int) -> None:
        """Change a job's priority; what it was served counts by the new one from here on."""
        member = self._members.get(job)
        if member is not None:
            standing = member.standing
            ratio = part_of_time(priority) / part_of_time(standing.priority)
            standing.served_ns, standing.priority = int(standing.served_ns * ratio), priority

    def depart(self, job: int) -> bool:
        """The job begins to free all that it holds; return False where it must wait."""
        if not self.is_quiet:
            self._members[job].departs = True
        return not self.is_quiet

    def begin_freeing(self, job: int) -> bool:
        """The job is about to free something, in a turn or not; return False where it must wait."""
        if not self.is_quiet and job in self._members:
            self._members[job].frees = True
        return not self.is_quiet

    def end_freeing(self, job: int) -> None:
        """It has."""
        if job in self._members:
            self._members[job].frees = False

    def leave(self, job: int) -> None:
        """The job is over and holds nothing."""
        self._members.pop(job, None)
        self._forget_dismissed(job)

    def validate(self) -> None:
        """Assert what holds at any time."""
        assert self.held_nbytes <= self.memory_nbytes, "more is held than there is"
        lanes = [member.share.lane for member in self._members.values() if member.has_turn]
        assert len(lanes) == len(set(lanes)), "two jobs of a lane have a turn"
        coming = [m.share.lane for m in self._members.values() if m.phase is Phase.APPROACHING and m.asks]
        assert len(coming) == len(set(coming)), "two jobs of a lane have the next turn"
        for member in self._members.values():
            assert not (member.asks and member.phase is Phase.TURN)
            assert not (member.asks and member.phase is Phase.LEAVING and not member.lingering_nbytes)
            assert not (member.phase is not Phase.AWAY and member.becoming is not None)
            assert not (member.is_in_transit and not (member.share.transit_nbytes or member.lingering_nbytes))
            assert member.lingering_nbytes == 0 or member.phase in (Phase.LINGERING, Phase.LEAVING)
        assert all(self.phase_of(job) is Phase.LEAVING for job in self._dismissed)
        assert not self.is_quiet or self._quiet_asked
        assert not self.is_quiet or all(m.phase is Phase.AWAY for m in self._members.values())

    def _begin_approaches(self) -> None:
        members = self._members.values()
        with_turn = {member.share.lane for member in members if member.has_turn}
        in_transit = {member.share.lane for member in members if member.is_in_transit}
        next_ones: dict[int, Member] = {}
        for job in self._asking():
            member = self._members[job]
            if member.share.lane not in with_turn:
                # It waits for memory, which others must not take.
                return
            next_ones.setdefault(member.share.lane, member)
        for lane, member in next_ones.items():
            if not member.comes_ahead or lane in in_transit or member.phase is not Phase.AWAY:
                continue
            missing_nbytes = self.held_nbytes + member.share.transit_nbytes - self.memory_nbytes
            if missing_nbytes <= 0:
                member.phase = Phase.APPROACHING
            else:
                self._dismiss(missing_nbytes)

    def _dismiss(self, nbytes: int, but: int | None = None) -> None:
        """Have states that linger leave, the longest unused first, until so much more is to become free."""
        for member in self._members.values():
            if member.phase is Phase.LEAVING:
                nbytes -= member.beyond_nbytes
        lingering = [
            (member.lingers_since, job)
            for job, member in self._members.items()
            if member.phase is Phase.LINGERING and job != but
        ]
        for _, job in sorted(lingering):
            if nbytes <= 0:
                return
            self.dismiss(job)
            nbytes -= self._members[job].lingering_nbytes

    def _forget_dismissed(self, job: int) -> None:
        self._dismissed = [other for other in self._dismissed if other != job]

    def _waits_for_lingering(self, member: Member) -> bool:
        """Whether a job was refused memory that others' states alone take which linger, or are leaving."""
        if member.awaited is not None:
            more_nbytes = member.awaited.always_nbytes - member.share.always_nbytes
        elif member.was_refused and self._holder(member.share.lane) is None:
            more_nbytes = member.share.ephemeral_nbytes - member.beyond_nbytes
        else:
            return False
        lingering_nbytes = sum(each.lingering_nbytes for each in self._members.values() if each is not member)
        return self.held_nbytes + more_nbytes - lingering_nbytes <= self.memory_nbytes

    def _asking(self) -> list[int]:
        """Return who asks, in order: who approaches first, for it was its turn when it began to.

        Then who waits for nothing but states that linger, or are leaving.
        """
        asking = [(job, member) for job, member in self._members.items() if member.asks]

        def place(pair: tuple[int, Member]) -> tuple[int | float, ...]:
            _, member = pair
            order = self._policy.key(member.standing)
            return (member.phase is not Phase.APPROACHING, not self._waits_for_lingering(member), *order)

        return [job for job, _ in sorted(asking, key=place)]

    def _others(self, job: int, lane: int) -> list[Member]:
        """Return the other members of a lane, without those that hold nothing yet."""
        return [
            member
            for other, member in self._members.items()
            if other != job and member.share.lane == lane and member.share.budget_nbytes
        ]

    @staticmethod
    def _count_like_the_least(others: list[Member], member: Member) -> None:
        """Count a member as served like the one of these others that was least, by its own priority."""
        claims = [other.standing.served_ns / part_of_time(other.standing.priority) for other in others]
        if claims:
            member.standing.served_ns = int(min(claims) * part_of_time(member.standing.priority))

    def _holder(self, lane: int) -> int | None:
        for job, member in self._members.items():
            if member.has_turn and member.share.lane == lane:
                return job
        return None
