"""What planning a job in some order and way begins with: nothing chosen, and what there is to choose from.

Source: ours; docs/planner.md, "auto".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.candidates import Candidate, find_candidates
from tensile_db.scheduler.choosing.sources import find_sources
from tensile_db.scheduler.choosing.ways import Way
from tensile_db.scheduler.plan import DeviceSpec

_Order = tuple[OpId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a residency has once candidates are found; it is shared, and nobody changes it."""

    candidates: Mapping[Gap, Candidate]
    needed: dict[TensorId, list[int]]
    pinned: set[TensorId]


class Beginnings:
    """Of one job and budget.  Each is found once: rounds and ways ask again."""

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
        self._latencies_ns = latencies_ns
        self._device = device
        self._budget_nbytes = budget_nbytes
        self._least_nbytes = least_nbytes
        self._ops_ns = sum(latencies_ns)
        #: By order, and a way's reach, whether it holds sources, and what it counts apart.
        self._known: dict[tuple[_Order, float, bool, bool], _Known] = {}
        #: By order and reach.
        self._sources: dict[tuple[_Order, float], Mapping[TensorId, int]] = {}

    def begin(self, order: _Order, way: Way) -> tuple[Residency, Mapping[Gap, Candidate]]:
        """Return a state in which nothing is away, and what may be recomputed in which gap."""
        residency = self._eager(order)
        sources = self.sources(order, way.reach) if way.holds else {}
        for tensor, until in sources.items():
            residency.hold(tensor, until)
        key = (order, way.reach, way.holds, way.apart)
        known = self._known.get(key)
        if known is None:
            for tensor, until in sources.items():
                residency.need(tensor, until)
            candidates = find_candidates(
                residency,
                self._device,
                near_ns=self._near_ns(way.reach),
                least_nbytes=self._least_nbytes,
                budget_nbytes=self._budget_nbytes,
                apart=way.apart,
            )
            known = _Known(candidates=candidates, needed=residency.needed, pinned=residency.pinned)
            self._known[key] = known
        residency.needed, residency.pinned = known.needed, known.pinned
        return residency, known.candidates

    def sources(self, order: _Order, reach: float) -> Mapping[TensorId, int]:
        """Return what may be held beyond its last access, and until which position."""
        known = self._sources.get((order, reach))
        if known is None:
            known = self._sources[order, reach] = find_sources(
                self._eager(order), near_ns=self._near_ns(reach), least_nbytes=self._least_nbytes
            )
        return known

    def _eager(self, order: _Order) -> Residency:
        return Residency(self._graph, self._latencies_ns, order)

    def _near_ns(self, reach: float) -> int:
        return int(reach * self._ops_ns)
