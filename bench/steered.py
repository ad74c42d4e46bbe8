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

from tensile_db.scheduler.sharing.growing_range import PAGE_NBYTES, SMALL_NBYTES


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
    """Return the places that are given, in the order of their beginnings; wanted: apart where at once."""
    given: list[Place] = []
    #: (address, end, until when) of those alive, ordered.
    alive: list[tuple[int, int, int]] = []
    for address, each in sorted(wanted, key=lambda place: place.of.begin):
        alive = [held for held in alive if held[2] > each.begin]
        place = min(_places(alive, each.nbytes, address), key=lambda place: (abs(place - address), place))
        insort(alive, (place, place + each.nbytes, each.end))
        given.append(Place(place, each))
    return given


def end_of(places: Sequence[Place]) -> int:
    """Return the end of the range of addresses that they take."""
    return max((place.address + place.of.nbytes for place in places), default=0)


def in_pages(nbytes: int) -> int:
    """Return the size of a range that has room for so much."""
    return -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES


def _places(alive: Sequence[tuple[int, int, int]], nbytes: int, wanted: int) -> Iterator[int]:
    """Yield places for so many bytes: in each hole its beginning, its end, and what is wanted."""
    begin = 0
    for address, end, _ in alive:
        if address - begin >= nbytes:
            yield begin
            for place in (address - nbytes, wanted):
                if begin + SMALL_NBYTES < place <= address - nbytes:
                    yield place
        begin = end
    yield begin
    if wanted > begin + SMALL_NBYTES:
        yield wanted
