"""What PyTorch's allocator makes of a program's memory, worked out ahead: one range of addresses that grows.

A recording's memory comes from the allocator, which gives each tensor the smallest hole that it fits into,
and lets the range grow by pages where there is none.  Tensors of many sizes that follow each other leave
holes, the more the less a plan leaves unused: so a recording holds more than its plan's peak, by this much.

Source: pytorch c10/cuda/CUDACachingAllocator.cpp, expandable segments.
Differs: of an op's results and its workspace, the workspace comes last; pages are never given back.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, assert_never

from tensile_db.graph import Op, StepGraph, TensorId
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Program

#: Sizes are multiples of it.
_GRANULE_NBYTES = 512
#: Up to this size memory comes from a range of its own.
SMALL_NBYTES = 2**20
_SMALL_PAGE_NBYTES, PAGE_NBYTES = 2 * 2**20, 20 * 2**20

#: Whoever holds memory: a tensor and which making of it; None: an op's workspace, for a moment.
Holder = tuple[TensorId, int] | None


class Asked(NamedTuple):
    """Somebody takes memory, or gives it back."""

    takes: bool
    holder: Holder
    nbytes: int


def ranges_nbytes(asked: Iterable[Asked]) -> tuple[int, int]:
    """Return the sizes of the range of small tensors and of that of large ones.

    asked: in order; of a recording, without tensors that begin an iteration on the device.
    Takes time in proportion to what is asked for times the holes, which are few.
    """
    small, large = _Range(_SMALL_PAGE_NBYTES), _Range(PAGE_NBYTES)
    for takes, holder, nbytes in asked:
        among = small if nbytes <= SMALL_NBYTES else large
        if takes:
            among.take(holder, in_granules(nbytes))
        else:
            among.give(holder)
    return small.nbytes, large.nbytes


def in_granules(nbytes: int) -> int:
    """Return what the allocator makes of a size.

    It gives an empty tensor no memory; here it has a granule, for each holder has an address.
    """
    return -(-max(1, nbytes) // _GRANULE_NBYTES) * _GRANULE_NBYTES


def alive_nbytes(graph: StepGraph, program: Program) -> int:
    """Return the least that such a recording holds: what is alive at once, without holes and rounding."""
    alive = most = 0
    for takes, _, nbytes in asked_for(graph, program):
        alive += nbytes if takes else -nbytes
        most = max(most, alive)
    return most


def in_pages(nbytes: int, page_nbytes: int | None = None) -> int:
    """Return by how much a range grows for so much; without a page's size, that of large tensors."""
    page_nbytes = page_nbytes or PAGE_NBYTES
    return -(-nbytes // page_nbytes) * page_nbytes


class _Range:
    """Addresses from 0, and what is free of them."""

    def __init__(self, page_nbytes: int) -> None:
        self._page_nbytes = page_nbytes
        self._end = 0
        #: By holder: (address, size).
        self._held: dict[Holder, tuple[int, int]] = {}
        #: (size, address), ordered; and sizes by address, and addresses by end.
        self._holes: list[tuple[int, int]] = []
        self._sizes: dict[int, int] = {}
        self._begins: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """The size."""
        return self._end

    def take(self, holder: Holder, nbytes: int) -> None:
        """Give a holder the smallest hole that is large enough, the first of equal ones, or more pages.

        The hole at the end counts as larger than all others, for it can grow.
        """
        place = bisect_left(self._holes, (nbytes, 0))
        if place == len(self._holes):
            self._grow(nbytes)
            place = bisect_left(self._holes, (nbytes, 0))
        size, address = self._holes[place]
        if address + size == self._end and place + 1 < len(self._holes):
            size, address = self._holes[place + 1]
        self._remove(address)
        if size > nbytes:
            self._add(address + nbytes, size - nbytes)
        self._held[holder] = (address, nbytes)

    def give(self, holder: Holder) -> None:
        """Take back what a holder has, and join it to the holes beside it."""
        address, nbytes = self._held.pop(holder)
        if address + nbytes in self._sizes:
            nbytes += self._remove(address + nbytes)
        if address in self._begins:
            before = self._begins[address]
            nbytes += self._remove(before)
            address = before
        self._add(address, nbytes)

    def _grow(self, nbytes: int) -> None:
        """Add as many pages as make the last hole large enough."""
        begin = self._begins.get(self._end, self._end)
        last = self._remove(begin) if begin < self._end else 0
        more = in_pages(nbytes - last, self._page_nbytes)
        self._end += more
        self._add(begin, last + more)

    def _add(self, address: int, nbytes: int) -> None:
        insort(self._holes, (nbytes, address))
        self._sizes[address] = nbytes
        self._begins[address + nbytes] = address

    def _remove(self, address: int) -> int:
        nbytes = self._sizes.pop(address)
        del self._begins[address + nbytes]
        del self._holes[bisect_left(self._holes, (nbytes, address))]
        return nbytes


def asked_for(graph: StepGraph, program: Program) -> Iterator[Asked]:
    """Yield in order who asks for memory and who lets go of it; graph: the program's.

    Tensors that begin an iteration on the device keep their places, whatever the program does with them.
    """
    return chain.from_iterable(asked_by_instructions(graph, program))


def asked_by_instructions(graph: StepGraph, program: Program) -> Iterator[list[Asked]]:
    """Yield for each instruction in turn who asks for memory and who lets go of it."""
    away = set(program.start_on_host)
    has_place = {tensor.id for tensor in graph.tensors if tensor.persistent and tensor.id not in away}
    nbytes = [tensor.nbytes for tensor in graph.tensors]
    held, leaving = set[TensorId](), set[TensorId]()
    # A tensor that is made again while it is there is another holder.
    makings = [0] * len(nbytes)

    def of(tensor: TensorId, *, takes: bool) -> Asked:
        return Asked(takes, (tensor, makings[tensor]), nbytes[tensor])

    def let_go(tensor: TensorId) -> list[Asked]:
        leaving.discard(tensor)
        if tensor in has_place:
            return []
        held.discard(tensor)
        return [of(tensor, takes=False)]

    def computed(op: Op, *, recompute: bool) -> list[Asked]:
        asked, replaced = [], []
        for tensor in op.writes:
            if graph.tensors[tensor].persistent:
                continue
            if tensor in held:
                if not recompute or tensor in op.reads:
                    continue
                replaced.append(of(tensor, takes=False))
                makings[tensor] += 1
            held.add(tensor)
            asked.append(of(tensor, takes=True))
        if op.workspace_nbytes:
            asked += [Asked(takes, None, op.workspace_nbytes) for takes in (True, False)]
        return asked + replaced

    for instruction in program.instructions:
        match instruction:
            case Compute(op=op, recompute=recompute):
                yield computed(graph.ops[op], recompute=recompute)
            case CopyOut(tensor=tensor):
                leaving.add(tensor)
                yield []
            case CopyIn(tensor=tensor) if tensor not in has_place:
                held.add(tensor)
                yield [of(tensor, takes=True)]
            case Await(tensor=tensor) if tensor in leaving:
                yield let_go(tensor)
            case CopyIn() | Await():
                yield []
            case Free(tensor=tensor):
                yield let_go(tensor)
            case _:
                assert_never(instruction)
