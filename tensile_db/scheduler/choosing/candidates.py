"""Which gaps of a job's tensors recomputation may fill, found before anything is decided.

Every candidate's inputs are noted as needed at the gap's end (`Residency.need`), so that whatever is decided
for them later, kept, swapped or recomputed, they are back when the candidate is made again.  Decisions on
gaps therefore do not depend on each other.  Consumers come before producers: a need that a consumer brings
shortens its producer's gap before the producer is looked at.

Source: ours; docs/planner/auto.md.  The chains are `analysis/chains.py`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tensile_db.graph import OpId, TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.chains import Chain, beyond_fresh_nbytes, find_chain
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import needed_nbytes
from tensile_db.scheduler.plan import DeviceSpec

#: Longer chains hold too much at once while they run.
MAX_CHAIN_OPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A tensor that may be released in a gap and made again at its end."""

    gap: Gap
    chain: Chain
    time_ns: int
    #: Bytes that the chain is charged beside the tensor, and beside what the op after it holds.
    beyond_nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """All of a job within a budget."""

    by_gap: Mapping[Gap, Candidate]
    #: Within every budget from this many bytes on, and below that many, they are the same; None: no limit.
    from_nbytes: int
    below_nbytes: int | None

    def are_within(self, budget_nbytes: int) -> bool:
        """Whether they are those within another budget, too."""
        below_nbytes = self.below_nbytes
        return self.from_nbytes <= budget_nbytes and (below_nbytes is None or budget_nbytes < below_nbytes)


def find_candidates(
    residency: Residency,
    device: DeviceSpec,
    *,
    near_ns: int,
    least_nbytes: int,
    budget_nbytes: int,
    apart: bool = False,
    only: frozenset[tuple[TensorId, OpId]] | None = None,
) -> Candidates:
    """Return the candidates, and note what they need.

    near_ns: an input must be in use again within this time after the gap's end, or it would be held for the
    candidate's sake alone, unless it is held anyway; gaps that are shorter are left alone too.
    least_nbytes: of a tensor worth it.  budget_nbytes: no op and all that is recomputed before it may
    together need more.  apart: whether a chain is charged only what it holds beyond that op's results.
    only: the candidates there may be, as a Way has them; what is near does not matter then.
    A candidate takes less time than a copy of its tensor to the device would.
    """
    graph, table = residency.graph, residency.table
    # Read one by one, lists are faster.
    begin_ns, end_ns = residency.begin_ns.tolist(), residency.end_ns.tolist()
    latencies_ns = residency.latencies_ns.tolist()
    found: dict[Gap, Candidate] = {}
    #: By position: bytes of the op's own tensors, and of what recomputation before it needs and makes.
    at_once: dict[int, int] = {}
    #: Bytes that were within the budget at most, and beyond it at least.
    from_nbytes, below_nbytes = 0, None
    tensors = [
        tensor.id
        for tensor in graph.tensors
        if not tensor.persistent
        and tensor.nbytes >= least_nbytes
        and table.writes[tensor.id]
        and table.last[tensor.id] > table.first[tensor.id]
    ]
    for tensor in sorted(tensors, key=lambda tensor: (-table.writes[tensor][-1], tensor)):
        nbytes = graph.tensors[tensor].nbytes
        for previous, following in pairwise(residency.accesses(tensor)):
            idle_ns = begin_ns[following] - end_ns[previous]
            is_out = idle_ns < near_ns if only is None else (tensor, table.order[following]) not in only
            if is_out or previous < table.writes[tensor][-1]:
                continue
            chain = _find_chain(residency, tensor, following)
            if chain is None:
                continue
            time_ns = sum(latencies_ns[residency.position[op]] for op in chain.ops)
            slower = time_ns * device.h2d_bytes_per_s > nbytes * 1_000_000_000
            if slower or (only is None and not _is_near(residency, chain, following, near_ns, begin_ns)):
                continue
            extra_nbytes = chain.extra_nbytes
            beyond_nbytes = beyond_fresh_nbytes(table, following, extra_nbytes) if apart else extra_nbytes
            held_nbytes = at_once.get(following) or _own_nbytes(residency, following)
            held_nbytes += beyond_nbytes + sum(
                graph.tensors[needed].nbytes
                for needed in chain.inputs
                if not residency.is_accessed_at(needed, following)
            )
            if held_nbytes > budget_nbytes:
                below_nbytes = held_nbytes if below_nbytes is None else min(below_nbytes, held_nbytes)
                continue
            from_nbytes = max(from_nbytes, held_nbytes)
            if not _pin(residency, chain, following, least_nbytes):
                continue
            at_once[following] = held_nbytes
            for needed in chain.inputs:
                residency.need(needed, following)
            gap = Gap(tensor=tensor, previous=previous, following=following, ops=len(table.order))
            found[gap] = Candidate(gap=gap, chain=chain, time_ns=time_ns, beyond_nbytes=beyond_nbytes)
    return Candidates(by_gap=found, from_nbytes=from_nbytes, below_nbytes=below_nbytes)


def _find_chain(residency: Residency, tensor: TensorId, before: int) -> Chain | None:
    graph = residency.graph

    def is_available(other: TensorId) -> bool:
        return graph.tensors[other].persistent or residency.is_accessed_from(other, before)

    return find_chain(residency.table, tensor, before, is_available, max_ops=MAX_CHAIN_OPS)


def _own_nbytes(residency: Residency, position: int) -> int:
    graph = residency.graph
    return needed_nbytes(graph.ops[residency.table.order[position]], graph.tensors)


def _is_near(residency: Residency, chain: Chain, before: int, near_ns: int, begin_ns: Sequence[int]) -> bool:
    """Whether all inputs are in use again soon, or held; begin_ns: of each op, shape (ops,)."""
    for tensor in chain.inputs:
        if not residency.graph.tensors[tensor].persistent and not residency.is_held(tensor, before):
            following = residency.next_access(tensor, before)
            assert following is not None, "an input is available"
            if begin_ns[following] - begin_ns[before] > near_ns:
                return False
    return True


def _pin(residency: Residency, chain: Chain, before: int, least_nbytes: int) -> bool:
    """Keep on the device what the chain makes a second time; return False where that would be much."""
    held = [tensor for tensor in chain.by_products if residency.next_access(tensor, before) is not None]
    if any(residency.graph.tensors[tensor].nbytes >= least_nbytes for tensor in held):
        return False
    residency.pinned.update(held)
    return True
