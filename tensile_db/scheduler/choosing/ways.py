"""Ways to choose among swaps and recomputations, of which the fastest plan is taken.

Source: ours; docs/planner/auto.md.
"""

from dataclasses import dataclass

from tensile_db.graph import OpId, TensorId
from tensile_db.scheduler.choosing.choices import First


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How to choose among swaps and recomputations."""

    #: How far recomputation reaches back, as a share of the iteration's time.
    reach: float
    first: First
    #: Whether sources are held beyond their last access (`sources.py`).
    holds: bool = False
    #: Whether what a recomputation holds counts apart from what the op after it makes. They are never there
    #: at once; but where both count, there is memory to spare for copies that come late.
    apart: bool = False
    #: Whether parameters leave at an iteration's end, too, so that going forward they leave without a copy.
    ahead: bool = True
    #: The recomputations that there are to choose from, however far they reach back: of a tensor, before an
    #: op.  None: all within reach.
    only: frozenset[tuple[TensorId, OpId]] | None = None


USUAL_WAY = Way(reach=0.05, first=First.DEAREST)
HOLDING_WAY = Way(reach=0.05, first=First.DEAREST, holds=True)
#: For jobs that lose time in the ways above.
TIGHT_WAY = Way(reach=0.05, first=First.DEAREST, apart=True)
#: For jobs where that is worth it, the most promising first.
OTHER_WAYS = (
    Way(reach=0.2, first=First.IDLE_LONGEST),
    Way(reach=0.2, first=First.DEAREST),
    Way(reach=0.02, first=First.DEAREST),
    Way(reach=0.05, first=First.IDLE_LONGEST),
)
#: In which jobs with large gradients are searched for: search weighs what greedy choices would take too
#: early, so that the longest chains are open to it.
SEARCHED_WAY = OTHER_WAYS[0]
