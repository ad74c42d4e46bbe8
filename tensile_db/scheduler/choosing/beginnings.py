"""What planning a job in some order and way begins with: nothing chosen, and what there is to choose from.

Source: ours; docs/planner/auto.md and docs/planner/planning_again.md.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.accesses import AccessTable, Gap, access_table, sizes_of
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.candidates import Candidate, Candidates, find_candidates
from tensile_db.scheduler.choosing.sources import find_sources
from tensile_db.scheduler.choosing.ways import Way
from tensile_db.scheduler.plan import DeviceSpec

#: Of a graph in one order, what was found last is kept, so many times.
_KEPT = 6

_Order = tuple[OpId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """What bears on sources in one order."""

    latencies_ns: tuple[int, ...]
    reach: float
    #: How many tensors are large enough: the size from which on they are decides nothing else.
    tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What bears on candidates in one order, but the budget."""

    reach: _Reach
    h2d_bytes_per_s: int
    holds: bool
    apart: bool
    only: frozenset[tuple[TensorId, OpId]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """What a residency has once candidates are found; it is shared, and nobody changes it."""

    asked: _Asked
    candidates: Candidates
    needed: dict[TensorId, list[int]]
    pinned: set[TensorId]


@dataclass(frozen=True, slots=True)
class _Found:
    """Of a graph in one order, the last ones last."""

    sources: deque[tuple[_Reach, Mapping[TensorId, int]]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    begun: deque[_Begun] = field(default_factory=lambda: deque(maxlen=_KEPT))


@once_for_each
def _found_of(_: AccessTable) -> _Found:
    # Filled below; what is in it never changes.
    return _Found()


class Beginnings:
    """Of one job and budget.

    The last ones found are kept: rounds and ways ask again, and so does who plans the job again with the
    latencies that it had, within a budget that makes no difference.
    """

    def __init__(
        self,
        graph: StepGraph,
        latencies_ns: Sequence[int],
        device: DeviceSpec,
        *,
        budget_nbytes: int,
        least_nbytes: int,
    ) -> None:
        """latencies_ns: by op id, shape (ops,).  least_nbytes: smaller tensors stay."""
        self._graph = graph
        self._latencies_ns = tuple(latencies_ns)
        self._device = device
        self._budget_nbytes = budget_nbytes
        self._least_nbytes = least_nbytes
        sizes = sizes_of(graph)
        self._tensors = int(np.count_nonzero((sizes.nbytes >= least_nbytes) & ~sizes.persistent))
        self._ops_ns = sum(latencies_ns)

    def begin(self, order: _Order, way: Way) -> tuple[Residency, Mapping[Gap, Candidate]]:
        """Return a state in which nothing is away, and what may be recomputed in which gap."""
        residency = self._eager(order)
        sources = self.sources(order, way.reach) if way.holds else {}
        for tensor, until in sources.items():
            residency.hold(tensor, until)
        begun = self._begun(residency, sources, way)
        residency.needed, residency.pinned = begun.needed, begun.pinned
        return residency, begun.candidates.by_gap

    def sources(self, order: _Order, reach: float) -> Mapping[TensorId, int]:
        """Return what may be held beyond its last access, and until which position."""
        asked = self._reach(reach)
        kept = _found_of(access_table(self._graph, order)).sources
        for known, sources in kept:
            if known == asked:
                return sources
        near_ns = self._near_ns(reach)
        found = find_sources(self._eager(order), near_ns=near_ns, least_nbytes=self._least_nbytes)
        kept.append((asked, found))
        return found

    def _begun(self, residency: Residency, sources: Mapping[TensorId, int], way: Way) -> _Begun:
        """Return what there is to choose from, with these sources held."""
        asked = _Asked(
            reach=self._reach(way.reach),
            h2d_bytes_per_s=self._device.h2d_bytes_per_s,
            holds=way.holds,
            apart=way.apart,
            only=way.only,
        )
        kept = _found_of(residency.table).begun
        for known in kept:
            if known.candidates.are_within(self._budget_nbytes) and known.asked == asked:
                return known
        for tensor, until in sources.items():
            residency.need(tensor, until)
        candidates = find_candidates(
            residency,
            self._device,
            near_ns=self._near_ns(way.reach),
            least_nbytes=self._least_nbytes,
            budget_nbytes=self._budget_nbytes,
            apart=way.apart,
            only=way.only,
        )
        kept.append(
            _Begun(asked=asked, candidates=candidates, needed=residency.needed, pinned=residency.pinned)
        )
        return kept[-1]

    def _reach(self, reach: float) -> _Reach:
        return _Reach(latencies_ns=self._latencies_ns, reach=reach, tensors=self._tensors)

    def _eager(self, order: _Order) -> Residency:
        return Residency(self._graph, self._latencies_ns, order)

    def _near_ns(self, reach: float) -> int:
        return int(reach * self._ops_ns)
