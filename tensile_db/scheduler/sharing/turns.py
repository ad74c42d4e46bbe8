"""Who may compute now, and who may hold how much meanwhile.  Pure: no clock, no threads.

A job that has come in always holds its resident part.  It asks for a turn before each iteration and gives it
back after its last one; while it has it, it may hold its ephemeral part too.  Of a lane's jobs only one has a
turn.  A change of shares needs no plan of its own: at a boundary, when the job has no turn, its ephemeral
part is free, so it changes its resident part, where there is room for that, and its lane at once.  So the
jobs' memory never exceeds the device's, in whatever order they come to their boundaries:

    sum of resident (of a changing job, the larger) + sum of ephemeral of those who have a turn <= memory

Nobody waits for ever: a job that shrinks never waits; when all that must shrink have, and the turns by old
shares are over, there is room for those that grow, since the new shares fit together.

Source: Salus sections 3.3 (lanes, defragmentation at the iteration's end, which costs nothing) and 4.
Differs: the room for an ephemeral part is looked for at each turn, so lanes can be made anew at any boundary.
"""

from dataclasses import dataclass

from tensile_db.scheduler.sharing.orders import SharingPolicy, Standing, part_of_time
from tensile_db.scheduler.sharing.share import Share


@dataclass(slots=True, kw_only=True)
class _Member:
    standing: Standing
    share: Share
    #: While the job changes its share: the new one, for which there is room.
    becoming: Share | None = None
    asks: bool = False
    has_turn: bool = False

    @property
    def resident_nbytes(self) -> int:
        becoming_nbytes = self.becoming.resident_nbytes if self.becoming is not None else 0
        return max(self.share.resident_nbytes, becoming_nbytes)


class Turns:
    """The jobs on one device, by id.  Every method keeps `validate` true."""

    def __init__(self, *, memory_nbytes: int, policy: SharingPolicy) -> None:
        self.memory_nbytes = memory_nbytes
        self._policy = policy
        self._members: dict[int, _Member] = {}
        self._arrivals = 0

    @property
    def held_nbytes(self) -> int:
        """The most that the jobs may hold at this moment, in bytes."""
        members = self._members.values()
        ephemeral_nbytes = sum(member.share.ephemeral_nbytes for member in members if member.has_turn)
        return ephemeral_nbytes + sum(member.resident_nbytes for member in members)

    def has_turn(self, job: int) -> bool:
        """Whether the job may compute."""
        return job in self._members and self._members[job].has_turn

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
        member = _Member(standing=standing, share=nothing)
        self._count_like_the_least(list(self._members.values()), member)
        self._members[job] = member

    def begin_change(self, job: int, share: Share) -> bool:
        """Make room for a job's new share; return False where there is none yet.  The job has no turn."""
        member = self._members[job]
        assert not member.has_turn, f"job {job} changes its share within a turn"
        assert share.budget_nbytes <= self.memory_nbytes, "no share exceeds the memory"
        before, member.becoming = member.becoming, share
        # One that holds no more than before is always let through.
        if share.resident_nbytes > member.share.resident_nbytes and self.held_nbytes > self.memory_nbytes:
            member.becoming = before
            return False
        return True

    def end_change(self, job: int) -> None:
        """The job holds its new share, and no more than that."""
        member = self._members[job]
        assert member.becoming is not None, f"job {job} changes nothing"
        if member.becoming.lane != member.share.lane or member.share.budget_nbytes == 0:
            # Lanes have had more or less of the time, which is not made up for either.
            self._count_like_the_least(self._others(job, member.becoming.lane), member)
        member.share, member.becoming = member.becoming, None

    def ask(self, job: int, *, left_ns: int) -> None:
        """The job wants a turn; left_ns: what it has still to do, predicted."""
        member = self._members[job]
        member.standing.left_ns = left_ns
        member.asks = not member.has_turn

    def withdraw(self, job: int) -> None:
        """The job wants no turn any more."""
        self._members[job].asks = False

    def grant(self) -> list[int]:
        """Give turns to those who ask and can have one, and return them, the most deserving first."""
        granted: list[int] = []
        for job in self._asking():
            member = self._members[job]
            if self._holder(member.share.lane) is not None:
                continue
            if self.held_nbytes + member.share.ephemeral_nbytes > self.memory_nbytes:
                # Only while shares change.  Others would take what it waits for.
                break
            member.has_turn, member.asks = True, False
            granted.append(job)
        return granted

    def is_wanted(self, job: int) -> bool:
        """Whether someone else waits for the job's turn."""
        lane = self._members[job].share.lane
        return any(member.asks and member.share.lane == lane for member in self._members.values())

    def is_wanted_to_serve(self, job: int) -> bool:
        """Whether someone who serves waits for the job's turn."""
        lane = self._members[job].share.lane
        return any(
            member.asks and member.standing.serves and member.share.lane == lane
            for member in self._members.values()
        )

    def serve(self, job: int, took_ns: int) -> None:
        """Count device time that the job has had."""
        self._members[job].standing.served_ns += took_ns

    def end(self, job: int) -> None:
        """The job's turn is over; it holds its resident part alone."""
        self._members[job].has_turn = False

    def set_priority(self, job: int, priority: int) -> None:
        """Change a job's priority; what it was served counts by the new one from here on."""
        member = self._members.get(job)
        if member is not None:
            standing = member.standing
            ratio = part_of_time(priority) / part_of_time(standing.priority)
            standing.served_ns, standing.priority = int(standing.served_ns * ratio), priority

    def leave(self, job: int) -> None:
        """The job is over and holds nothing."""
        self._members.pop(job, None)

    def validate(self) -> None:
        """Assert what holds at any time."""
        assert self.held_nbytes <= self.memory_nbytes, "more is held than there is"
        lanes = [member.share.lane for member in self._members.values() if member.has_turn]
        assert len(lanes) == len(set(lanes)), "two jobs of a lane have a turn"
        for member in self._members.values():
            assert not (member.has_turn and member.asks)
            assert not (member.has_turn and member.becoming is not None)

    def _asking(self) -> list[int]:
        asking = [(job, member.standing) for job, member in self._members.items() if member.asks]
        return [job for job, _ in sorted(asking, key=lambda pair: self._policy.key(pair[1]))]

    def _others(self, job: int, lane: int) -> list[_Member]:
        """Return the other members of a lane, without those that hold nothing yet."""
        return [
            member
            for other, member in self._members.items()
            if other != job and member.share.lane == lane and member.share.budget_nbytes
        ]

    @staticmethod
    def _count_like_the_least(others: list[_Member], member: _Member) -> None:
        """Count a member as served like the one of these others that was least, by its own priority."""
        claims = [other.standing.served_ns / part_of_time(other.standing.priority) for other in others]
        if claims:
            member.standing.served_ns = int(min(claims) * part_of_time(member.standing.priority))

    def _holder(self, lane: int) -> int | None:
        for job, member in self._members.items():
            if member.has_turn and member.share.lane == lane:
                return job
        return None
