"""What a job may hold of a device that it shares.

A job's memory has up to three parts: what it keeps from one turn to the next (its resident part: parameters
and optimizer state, as far as its plan leaves them on the device between iterations), what it holds beyond
while an iteration of its runs (its ephemeral part), and what it recorded of one (below).  Jobs of one lane
take turns, so their ephemeral parts need room only once:

    sum over jobs of (resident + recorded) + sum over lanes of (the largest ephemeral + the largest transit)
        <= memory

Recorded is an iteration that was taken down and is replayed: it holds the memory of one, also while others
have their turns, and beside what the job itself runs op by op.  Only where there is room for that is it kept
(`headroom.py`).

A job whose state leaves as a whole between its turns has no resident part.  Where its lane has room for one
state in transit, the state comes while another job of the lane computes, and goes while the next one does.

Source: Salus section 3.3.2 (persistent and ephemeral memory, lanes, the safety condition).
Differs: a plan decides how much of a job's state is resident; transit and recorded are ours.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

#: The most that moving a job's state may take, as a share of its turn.
MOVING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One job's part of the device; sizes in bytes."""

    lane: int
    #: Of its state, held at all times, between turns too.
    resident_nbytes: int
    #: Held beyond that during a turn.
    ephemeral_nbytes: int
    #: Held before a turn and after it, while the state is moved and others compute; 0: it is moved within
    #: the turn, if at all.
    transit_nbytes: int = 0
    #: Held by an iteration that was taken down, between turns, too, and beside what is run op by op.
    recorded_nbytes: int = 0
    #: Iterations that a turn lasts where others wait for it.
    iterations: int = 1

    @property
    def least_iterations(self) -> int:
        """Iterations of a turn that ends early, for one that serves: as long as moving the state takes."""
        return max(1, int(self.iterations * MOVING))

    @property
    def always_nbytes(self) -> int:
        """The most that the job may hold between turns."""
        return self.resident_nbytes + self.recorded_nbytes

    @property
    def budget_nbytes(self) -> int:
        """The most that the job may hold."""
        return self.always_nbytes + self.ephemeral_nbytes

    def holds_as_much_as(self, other: "Share") -> bool:
        """Whether the two may hold the same, in the same lane, however long their turns last."""
        return replace(self, iterations=other.iterations) == other


def without_recorded(share: Share) -> Share:
    """Return a share without what is given up as soon as others want it."""
    return replace(share, recorded_nbytes=0)


def needed_nbytes(shares: Iterable[Share]) -> int:
    """Return the device memory that jobs with these shares may hold together, in bytes."""
    always_nbytes = 0
    ephemeral: dict[int, int] = defaultdict(int)
    transit: dict[int, int] = defaultdict(int)
    for share in shares:
        always_nbytes += share.always_nbytes
        ephemeral[share.lane] = max(ephemeral[share.lane], share.ephemeral_nbytes)
        transit[share.lane] = max(transit[share.lane], share.transit_nbytes)
    return always_nbytes + sum(ephemeral.values()) + sum(transit.values())
