"""What the relaxation notes at each segment of time, before it is added up along the iteration.

Source: ours; docs/planner/bound.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tensile_db.scheduler.bound.linear_program import LinearProgram, Term, Variable


@dataclass(slots=True)
class Segment:
    """What happens to the counted bytes at one segment's ends, and to the work that may lie anywhere."""

    #: At its start: bytes that a copy to the host may take; bytes that are away without a copy.
    leave: list[Term] = field(default_factory=list)
    vanish: list[Term] = field(default_factory=list)
    #: At its end: bytes that copies to the device must have brought.
    due: list[Term] = field(default_factory=list)
    #: Within it: bytes that copies move which have only a few segments for it (`whole.Window`), and those
    #: that come once more for the sake of a recomputation.
    own_out: list[Term] = field(default_factory=list)
    own_into: list[Term] = field(default_factory=list)
    once_more: list[Term] = field(default_factory=list)
    #: Change of the bytes that are away by recomputation, and of those counted twice (`idle.overlaps`).
    recomputed: list[Term] = field(default_factory=list)
    doubled: list[Term] = field(default_factory=list)
    #: Time of ops and recomputations that may run from here on, and that must have run by its end.
    released_work: list[Term] = field(default_factory=list)
    released_work_ns: int = 0
    due_work: list[Term] = field(default_factory=list)
    due_work_ns: int = 0
    #: Time that its own op takes less.
    saved_time: list[Term] = field(default_factory=list)


def move_within(
    program: LinearProgram,
    size: float,
    share: Variable,
    segments: Sequence[Segment],
    within: Sequence[int],
    parts_of: Callable[[Segment], list[Term]],
) -> None:
    """Demand that a share of a tensor of this size be moved in some of the segments.

    parts_of: the list of a segment that its copies are noted in.
    """
    moved: list[Term] = []
    for index in within:
        part = (1.0, program.variable())
        parts_of(segments[index]).append(part)
        moved.append(part)
    program.equal([*moved, (-size, share)], 0.0)
