"""Places that PyTorch's allocator can be made to give, as near as may be to those that are wanted.

The allocator gives the smallest hole that is large enough, from its beginning.  Whoever takes all other holes
for that moment, and of the hole that is meant what lies before the place, has it give this one.  All that is
taken so is more than `SMALL_NBYTES`, for less comes from another range: a place is at the beginning of a hole
or by more than that behind it.

Source: ours; pytorch c10/cuda/CUDACachingAllocator.cpp, get_free_block.
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tensile_db.scheduler.sharing.growing_range import SMALL_NBYTES


class Lifetime(NamedTuple):
    """Somebody's memory: from when, until when (exclusive), how much."""

    begin: int
    end: int
    nbytes: int


class Place(NamedTuple):
    """Where somebody's memory begins."""

    address: int
    of: Lifetime


def steered(wanted: Sequence[Place]) -> list[Place]:
    """Return the places that are given, in the order in which memory is asked for."""
    given: list[Place] = []
    # (address, end, until when) of those alive, ordered.
    alive: list[tuple[int, int, int]] = []
    for wanted_address, each in sorted(wanted, key=lambda place: place.of.begin):
        alive = [held for held in alive if held[2] > each.begin]
        found = _addresses(alive, each.nbytes, wanted_address)
        _, address = min((abs(address - wanted_address), address) for address in found)
        insort(alive, (address, address + each.nbytes, each.end))
        given.append(Place(address, each))
    return given


def end_of(places: Sequence[Place]) -> int:
    """Return the end of the range of addresses that they take."""
    return max((place.address + place.of.nbytes for place in places), default=0)


def _addresses(alive: Sequence[tuple[int, int, int]], nbytes: int, wanted: int) -> Iterator[int]:
    """Yield addresses for so many bytes: at the beginning of each hole, at its end, and the wanted one."""
    begin = 0
    for next_begin, end, _ in alive:
        last = next_begin - nbytes
        if last >= begin:
            yield begin
            for address in (last, wanted):
                if begin + SMALL_NBYTES < address <= last:
                    yield address
        begin = end
    yield begin
    if wanted > begin + SMALL_NBYTES:
        yield wanted
