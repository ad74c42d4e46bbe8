"""Memory whose allocator gives the smallest hole there is, and is made to give the places that are wanted.

All of a range is taken; what is free of it is held by plugs.  Before something is allocated the plugs go from
where it is wanted, and others come to both sides of it, so that the only hole that it fits is the one meant.
Where it has come is looked at afterwards: nothing is taken for granted, and what comes elsewhere stays there.
Gaps as small as what comes from another range are left open, for nothing large fits them.

Source: ours; scheduler/sharing/addresses.py for what can be given.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from tensile_db.scheduler.sharing import growing_range
from tensile_db.scheduler.sharing.addresses import is_large, nearest
from tensile_db.scheduler.sharing.growing_range import in_granules

#: Allocations that may come to holes that nobody knows of before one comes to the hole that is meant.
_STRAYS = 8

#: Beginning and end of addresses, from the range's beginning.
Span = tuple[int, int]


class Wanted(NamedTuple):
    """Where memory is to come."""

    #: From the range's beginning.
    address: int
    nbytes: int
    #: False: it is there for a moment only, and nobody will note it.
    stays: bool


class SteeredMemory:
    """One range of addresses.  Used by one thread only."""

    def __init__(self, allocate: Callable[[int], torch.UntypedStorage], nbytes: int) -> None:
        """Take the range; allocate: from memory in which there is nothing large yet.

        What nobody knows of comes behind it, where the range grows.
        Raises what `allocate` does.
        """
        self._allocate = allocate
        self._end = nbytes
        #: How often a place was not to be had, or memory came where nothing was open: for a tensor, both may.
        self.astray = 0
        #: By tensors, and what could not be had.
        self._held = _Spans(self._end)
        self._plugged = _Spans(self._end)
        self._plugs: dict[Span, torch.UntypedStorage] = {}
        #: Where tensors are, of those that have come where something was open.
        self._places: dict[Hashable, Span] = {}
        #: Each with whether what is to come there stays.
        self._opened: list[tuple[Span, bool]] = []
        free = allocate(nbytes)
        self._base = free.data_ptr()
        # Else what is behind, which is given last as it can grow, would be one hole with what is free before.
        self._wall: torch.UntypedStorage | None = allocate(in_granules(growing_range.SMALL_NBYTES + 1))
        del free
        self._cover((0, self._end))

    @contextmanager
    def opened(self, wanted: Sequence[Wanted]) -> Iterator[None]:
        """Have what is allocated within come to places, in whatever order.

        Those that fit nowhere are left to the allocator.  What has come and stays is noted before the end,
        when what is open still is closed.
        """
        self._open(wanted)
        yield
        opened, self._opened = self._opened, []
        for span, stays in opened:
            if stays and self._held.is_clear(span):
                # Somebody else may be there, and to ask for all of it would have the range grow.
                self._held.add(span)
            else:
                self._cover(span)

    def note(self, holder: Hashable, address: int | None, nbytes: int) -> None:
        """Note where memory has come that was allocated while places were open; None: nowhere."""
        if address is not None:
            begin = address - self._base
            span = begin, begin + in_granules(nbytes)
            if self._is_free(span):
                self._held.add(span)
                self._places[holder] = span
                return
        self.astray += 1

    def let_go(self, holder: Hashable) -> None:
        """Take what a holder has let go of."""
        span = self._places.pop(holder, None)
        if span is not None:
            self._held.remove(span)
            self._cover(span)

    def release(self) -> None:
        """Let go of all that is free; nothing is steered any more."""
        self._plugs.clear()
        self._wall = None

    def _open(self, wanted: Sequence[Wanted]) -> None:
        stand_ins = []
        for wanted_address, nbytes, stays in wanted:
            size = in_granules(nbytes)
            address = nearest(self._held.all(), size, wanted_address, self._end)
            if address is None:
                self.astray += 1
                continue
            stand_in = self._clear((address, address + size))
            if stand_in is not None:
                stand_ins.append(stand_in)
                self._opened.append(((address, address + size), stays))
        for span, _ in self._opened:
            self._held.remove(span)
        # All at once: what is free already would have others come there.
        stand_ins.clear()

    def _clear(self, span: Span) -> torch.UntypedStorage | None:
        """Take all around a span that is free, and the span itself; return what holds it.

        None where it could not be had; what is around it counts as held from then on.
        """
        hole = begin, end = self._held.around(span[0])
        self._unplug(hole)
        before = begin, span[0]
        if begin == span[0] or self._plug(before):
            stand_in = self._take(span)
            if stand_in is not None:
                self._held.add(span)
                if span[1] < end:
                    self._cover((span[1], end))
                return stand_in
            self._unplug(hole)
        self.astray += 1
        self._held.add(hole)
        return None

    def _cover(self, span: Span) -> None:
        """Plug what is free of a span, and what is free beside that."""
        for gap in list(self._gaps(span)):
            if is_large(gap[1] - gap[0]) and not self._plug(gap):
                self.astray += 1
                self._held.add(gap)

    def _gaps(self, span: Span) -> Iterator[Span]:
        """Yield what is neither held nor plugged, within a span and at its ends."""
        at = span[0]
        while at < span[1]:
            hole, between = self._held.around(at), self._plugged.around(at)
            begin, end = max(hole[0], between[0]), min(hole[1], between[1])
            if begin < end and begin <= span[1]:
                yield begin, end
            at = max(begin, end)

    def _is_free(self, span: Span) -> bool:
        return self._held.is_clear(span) and self._plugged.is_clear(span)

    def _plug(self, span: Span) -> bool:
        storage = self._take(span)
        if storage is None:
            return False
        self._plugged.add(span)
        self._plugs[span] = storage
        return True

    def _unplug(self, within: Span) -> None:
        for span in self._plugged.within(within):
            self._plugged.remove(span)
            del self._plugs[span]

    def _take(self, span: Span) -> torch.UntypedStorage | None:
        """Return memory of a span with which a hole begins; None where it is not to be had."""
        strays = []
        for _ in range(_STRAYS):
            try:
                storage = self._allocate(span[1] - span[0])
            except torch.OutOfMemoryError:
                # There is no hole so large, and the range cannot grow.
                break
            found = storage.data_ptr() - self._base
            if found == span[0]:
                return storage
            if found >= self._end:
                # The range has grown: there is no hole so large.
                break
            strays.append(storage)
        return None


class _Spans:
    """Spans apart from each other, in order."""

    def __init__(self, end: int) -> None:
        """end: of all addresses."""
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._end = end

    def all(self) -> list[Span]:
        """Return them."""
        return list(zip(self._begins, self._ends, strict=True))

    def add(self, span: Span) -> None:
        """Add one."""
        at = bisect_left(self._begins, span[0])
        self._begins.insert(at, span[0])
        self._ends.insert(at, span[1])

    def remove(self, span: Span) -> None:
        """Remove one."""
        at = bisect_left(self._begins, span[0])
        assert (self._begins[at], self._ends[at]) == span, f"{span} is none of them"
        del self._begins[at], self._ends[at]

    def around(self, address: int) -> Span:
        """Return the end of what begins there or before, and the beginning of what comes next."""
        after = bisect_right(self._begins, address)
        begin = self._ends[after - 1] if after else 0
        end = self._begins[after] if after < len(self._begins) else self._end
        return begin, end

    def is_clear(self, span: Span) -> bool:
        """Whether none of them has any of it."""
        begin, end = self.around(span[0])
        return begin <= span[0] and span[1] <= end

    def within(self, span: Span) -> list[Span]:
        """Return those that a span has as a whole; none lies across its ends."""
        first, last = bisect_left(self._begins, span[0]), bisect_left(self._begins, span[1])
        return list(zip(self._begins[first:last], self._ends[first:last], strict=True))
