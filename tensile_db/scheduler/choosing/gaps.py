"""The idle gaps of a job's tensors as arrays: what there is to choose for, and what each choice takes.

Source: ours; docs/planner/auto.md.  The value of a recomputation, time per byte, is the inverse of MSPS
(Capuchin equation 3, TENSILE equation 4).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import AccessTable, Gap
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.candidates import Candidate
from tensile_db.scheduler.plan import Plan, Recompute, SwapOut

#: What may be chosen for a gap, as lists and arrays have it.
STAY, SWAP, RECOMPUTE = range(3)


class Gaps:
    """The gaps of one job in one order; lists and arrays are of shape (gaps,) where nothing else is said."""

    def __init__(
        self, residency: Residency, link: Link, candidates: Mapping[Gap, Candidate], least_nbytes: int
    ) -> None:
        """least_nbytes: smaller tensors stay."""
        tensors = residency.graph.tensors
        self.ops = len(residency.table.order)
        self.all = [
            gap
            for tensor in tensors
            if tensor.nbytes >= least_nbytes and tensor.id not in residency.pinned
            for gap in _gaps_of(residency, tensor.id)
        ]
        self.candidates = [candidates.get(gap) for gap in self.all]
        self.nbytes = np.array([tensors[gap.tensor].nbytes for gap in self.all], dtype=np.int64)
        self.previous = np.array([gap.previous for gap in self.all], dtype=np.int64)
        self.following = np.array([gap.following for gap in self.all], dtype=np.int64)
        #: What recomputation costs, ns a byte; infinite where there is none.
        self.recompute_cost = np.array(
            [
                np.inf if candidate is None else candidate.time_ns / tensors[candidate.gap.tensor].nbytes
                for candidate in self.candidates
            ]
        )
        self.may_recompute = np.isfinite(self.recompute_cost)
        #: How long the copies to the host and to the device take, ns.
        sizes: list[int] = self.nbytes.tolist()
        # There are many tensors and few sizes.
        different = set(sizes)
        copy_ns = {nbytes: (link.out_ns(nbytes), link.in_ns(nbytes)) for nbytes in different}
        self.copy_ns = [copy_ns[nbytes] for nbytes in sizes]
        #: What both copies take of the ops' time, ns.
        lost_ns = {nbytes: link.ops_lose_ns(nbytes) for nbytes in different}
        self.lost_ns = [lost_ns[nbytes] for nbytes in sizes]
        #: For each gap, those since the tensor's last write that come before it: where the tensor is swapped
        #: in one of them, the host has its value, and it leaves without a copy.
        self.paid_in = _since_last_write(self.all, residency.table)
        #: When ops begin and end, ns; shape (ops,).  Read one by one, a list is faster.
        self.begin_ns: list[int] = residency.begin_ns.tolist()
        self.end_ns: list[int] = residency.end_ns.tolist()
        #: When a copy to the host may begin, and when one to the device must have ended, ns.
        self.release_ns = [self.end_ns[gap.previous] for gap in self.all]
        self.due_ns = [self._due_ns(gap, residency) for gap in self.all]

    @cached_property
    def pays_for(self) -> list[list[int]]:
        """For each gap, those that `paid_in` has it in."""
        found: list[list[int]] = [[] for _ in self.all]
        for index, paid_in in enumerate(self.paid_in):
            for earlier in paid_in:
                found[earlier].append(index)
        return found

    @cached_property
    def by_release(self) -> list[int]:
        """The gaps by when their copies to the host may begin."""
        return sorted(range(len(self.all)), key=lambda index: (self.release_ns[index], index))

    @cached_property
    def by_return(self) -> list[int]:
        """The gaps by when their tensors are due back, the last one first."""
        return sorted(range(len(self.all)), key=lambda index: (-self.due_ns[index], index))

    def candidate(self, index: int) -> Candidate:
        """Return what is recomputed in a gap where that may be."""
        candidate = self.candidates[index]
        assert candidate is not None, "only candidates are recomputed"
        return candidate

    def idle_ns(self) -> NDArray[np.float64]:
        """Return how long each gap lasts (Capuchin's free time)."""
        begin_ns, end_ns = np.array(self.begin_ns), np.array(self.end_ns)
        back_ns = begin_ns[self.following % self.ops]
        back_ns = back_ns + np.where(self.following >= self.ops, end_ns[-1], 0)
        return np.asarray(back_ns - end_ns[self.previous], dtype=np.float64)

    def _due_ns(self, gap: Gap, residency: Residency) -> int:
        """Return when the tensor must be back: where a recomputation needs it, before that begins."""
        following = gap.following % self.ops
        if following and following in residency.needed.get(gap.tensor, ()):
            return self.end_ns[following - 1]
        return self.begin_ns[following]


def _since_last_write(gaps: Sequence[Gap], table: AccessTable) -> list[tuple[int, ...]]:
    """Return, for each gap, the earlier ones of its tensor between the same two writes; ascending in time."""
    found: list[tuple[int, ...]] = [()] * len(gaps)
    for tensor, indices in groupby(range(len(gaps)), key=lambda index: gaps[index].tensor):
        of_tensor = list(indices)
        writes = table.writes[tensor]
        if len(of_tensor) < 2 or not writes:
            continue
        # What comes before an iteration's first write belongs to the last one of the iteration before.
        later = [index for index in of_tensor if gaps[index].previous >= writes[-1]]
        sooner = [index for index in of_tensor if gaps[index].following <= writes[0]]
        between = [
            [i for i in of_tensor if first <= gaps[i].previous and gaps[i].following <= second]
            for first, second in pairwise(writes)
        ]
        for epoch in ([*later, *sooner], *between):
            for place, index in enumerate(epoch):
                found[index] = tuple(epoch[:place])
    return found


def chosen_in(plan: Plan, gaps: Gaps) -> list[int]:
    """Return what a plan has chosen for each gap, as far as there is such a gap; of a plan in their order."""
    position = {op: index for index, op in enumerate(plan.order)}
    of_tensor: dict[TensorId, list[int]] = defaultdict(list)
    for index, gap in enumerate(gaps.all):
        of_tensor[gap.tensor].append(index)
    chosen = [STAY] * len(gaps.all)
    for event in plan.events:
        if isinstance(event, SwapOut):
            left = -1 if event.trigger_op is None else position[event.trigger_op]
            # A tensor leaves in the gap that its last access before that begins.
            begun = [index for index in of_tensor[event.tensor] if gaps.all[index].previous <= left]
            if begun:
                chosen[begun[-1]] = SWAP
        elif isinstance(event, Recompute):
            ends = position[event.before_op]
            for index in of_tensor[event.tensor]:
                if gaps.all[index].following == ends and gaps.may_recompute[index]:
                    chosen[index] = RECOMPUTE
    return chosen


def carried(chosen: Sequence[int], gaps: Gaps, others: Gaps) -> list[int]:
    """Return what is chosen for gaps as choices for those of the same job and order among other candidates.

    chosen: shape (gaps,).  A tensor that was away stays away where its gap is in two now; one that was to be
    made again between them is swapped, and is made again at the end.
    """
    of_tensor: dict[TensorId, list[tuple[Gap, int]]] = defaultdict(list)
    for gap, choice in zip(gaps.all, chosen, strict=True):
        of_tensor[gap.tensor].append((gap, choice))
    found = [STAY] * len(others.all)
    for index, other in enumerate(others.all):
        for gap, choice in of_tensor[other.tensor]:
            overlap = gap.previous < other.following and other.previous < gap.following
            if not overlap or choice == STAY:
                continue
            ends = gap.following == other.following and others.may_recompute[index]
            found[index] = RECOMPUTE if choice == RECOMPUTE and ends else max(found[index], SWAP)
    return found


def _gaps_of(residency: Residency, tensor: TensorId) -> Iterable[Gap]:
    """Return the gaps in which ops run, the one over the iteration's end too."""
    if residency.needed.get(tensor):
        return _gaps_between(residency.table, tensor, residency.accesses(tensor))
    return gaps_between_ops(residency.table)[tensor]


@once_for_each
def gaps_between_ops(table: AccessTable) -> list[tuple[Gap, ...]]:
    """Return, by tensor id, its gaps where no recomputation needs it."""
    return [
        tuple(_gaps_between(table, tensor.id, table.positions[tensor.id])) for tensor in table.graph.tensors
    ]


def _gaps_between(table: AccessTable, tensor: TensorId, accesses: Sequence[int]) -> Iterator[Gap]:
    ops = len(table.order)
    for previous, following in pairwise(accesses):
        if following > previous + 1:
            yield Gap(tensor=tensor, previous=previous, following=following, ops=ops)
    if accesses and table.graph.tensors[tensor].persistent:
        yield Gap(tensor=tensor, previous=accesses[-1], following=accesses[0] + ops, ops=ops)
