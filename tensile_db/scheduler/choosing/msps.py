"""Which tensor to recompute next: the one that saves most memory per second of recomputation.

Choosing one tensor changes what others cost. Those that it is a source of must begin further back, and what
it is made from is run again for each of them.

Source: Capuchin sections 4.4 and 4.5, equation 2 and algorithm 2. Differs: algorithm 2 takes a source that
is recomputed to be away whenever another tensor needs it; here only where the other one is needed before it
is back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tensile_db.graph import OpId, TensorId
from tensile_db.scheduler.analysis.accesses import Gap


@dataclass(slots=True, kw_only=True)
class Lineage:
    """What recomputing a tensor at the end of a gap takes, as far as known."""

    gap: Gap
    nbytes: int
    #: Tensors that the recomputation begins at (srcs).
    sources: set[TensorId]
    #: The ops from the sources to the tensor as they were before anything was chosen.
    ops: tuple[OpId, ...]
    #: Of the ops from the sources to the tensor (rp_time).
    time_ns: int
    #: Of running those ops again for other tensors that are made from this one (ext_time).
    repeated_ns: int = 0

    @property
    def overhead_ns(self) -> int:
        """What recomputing the tensor adds to an iteration."""
        return self.time_ns + self.repeated_ns

    @property
    def msps(self) -> float:
        """Memory saving per second, in bytes per ns."""
        return self.nbytes / max(1, self.overhead_ns)

    def lacks(self, other: "Lineage") -> bool:
        """Whether the other tensor is a source of this one, and away when this one is needed."""
        at = self.gap.following
        return other.gap.tensor in self.sources and other.gap.previous < at <= other.gap.following


class Lineages:
    """Candidates for recomputation (candidates) and the tensors chosen for it (recomps)."""

    def __init__(self, candidates: Iterable[Lineage]) -> None:
        self.candidates = {lineage.gap.tensor: lineage for lineage in candidates}
        self.chosen: dict[TensorId, Lineage] = {}

    def find_best(self) -> Lineage | None:
        """Return the candidate of the largest MSPS (line 4), or None where there is none."""
        ranked = self.candidates.values()
        return max(ranked, key=lambda lineage: (lineage.msps, -lineage.gap.tensor), default=None)

    def choose(self, tensor: TensorId) -> Lineage:
        """Make a candidate one of the chosen, and update all others (lines 5 to 34)."""
        target = self.candidates.pop(tensor)
        runs = 1
        for other in self.chosen.values():
            if other.lacks(target):
                _begin_further_back(other, target)
                runs += 1
        self.chosen[tensor] = target
        for candidate in self.candidates.values():
            if candidate.lacks(target):
                _begin_further_back(candidate, target)
                candidate.time_ns += target.time_ns
                candidate.repeated_ns = sum(
                    candidate.time_ns for other in self.chosen.values() if other.lacks(candidate)
                )
            if target.lacks(candidate):
                candidate.repeated_ns = runs * candidate.time_ns
        return target


def _begin_further_back(lineage: Lineage, source: Lineage) -> None:
    lineage.sources.discard(source.gap.tensor)
    lineage.sources |= source.sources
