"""Places for memory whose lifetimes are known ahead, such as PyTorch's allocator can be made to give.

The allocator gives the smallest hole that is large enough, from its beginning.  Whoever takes all other holes
for that moment, and of the hole that is meant what lies before the place, has it give this one.  All that is
taken so is more than `SMALL_NBYTES`, for less comes from another range: a place is at the beginning of a hole
or by more than that behind it.

Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, "Greedy by Size";
pytorch c10/cuda/CUDACachingAllocator.cpp, get_free_block.
Differs: sizes are weighed by powers of how long they are held, of which the best is taken; then addresses
are moved to the nearest that the allocator can be made to give.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from tensile_db.scheduler.sharing import growing_range
from tensile_db.scheduler.sharing.growing_range import Asked, Holder, in_granules

#: Whom to place first: the largest of bytes times this power of the time.  Of networks like those of
#: bench/placing.py the first three are best, or nearly, for most.
POWERS = (0.2, 0.0, 1.0, 0.35, 0.5, 0.75, 0.1)
#: Pairs of tensors that are looked at, by all powers together: of 500 tensors it is a fifth of a second.
_MOST_PAIRS = 8_000_000
#: Searches whose results are kept.
_KEPT = 16
#: Rounds after which places of those asked for together are taken as they are.
_MOST_ROUNDS = 4


class Lifetime(NamedTuple):
    """Somebody's memory: held in [begin, end), so many bytes.

    2i is when instruction i takes what it takes, 2i + 1 when it gives back what it gives back.
    """

    begin: int
    end: int
    nbytes: int


def is_large(nbytes: int) -> bool:
    """Whether so much comes from the range in which places are chosen."""
    return nbytes > growing_range.SMALL_NBYTES


def lifetimes(asked: Iterable[Sequence[Asked]]) -> list[Lifetime]:
    """Return what of all that is large is held when, in the order in which it is asked for.

    asked: by instruction.  What an instruction takes is there before it gives anything back.
    """
    begun: dict[Holder, int] = {}
    found: list[Lifetime] = []
    time = 0
    for time, of_one in enumerate(asked):
        for takes, holder, nbytes in of_one:
            if not is_large(nbytes):
                continue
            if takes:
                begun[holder] = len(found)
                found.append(Lifetime(2 * time, -1, in_granules(nbytes)))
            else:
                place = begun.pop(holder)
                found[place] = found[place]._replace(end=2 * time + 1)
    for place in begun.values():
        found[place] = found[place]._replace(end=2 * time + 1)
    return found


def best_addresses(found: Sequence[Lifetime]) -> tuple[int, ...] | None:
    """Return addresses that can be had, with an early end; found: in the order in which it is asked for.

    Takes time in proportion to the square of their number, times its logarithm, but no more than some
    seconds: of thousands fewer orders are tried, and None is returned where one would take too long.
    """
    return _best_addresses(tuple(found), growing_range.SMALL_NBYTES)


@lru_cache(maxsize=_KEPT)
def _best_addresses(found: tuple[Lifetime, ...], _small_nbytes: int) -> tuple[int, ...] | None:
    # What counts as small decides which addresses can be had; `nearest` reads it itself.
    powers = POWERS[: _MOST_PAIRS // max(1, len(found)) ** 2]
    # The first of equal ones.
    ways = [tuple(steered(found, placed(found, power))) for power in powers]
    return min(ways, key=lambda addresses: end_of(found, addresses), default=None)


def placed(found: Sequence[Lifetime], power: float) -> list[int]:
    """Return addresses at will: each where the least is left over beside those before that live with it."""
    addresses = [0] * len(found)
    before: list[int] = []
    for place in sorted(range(len(found)), key=lambda place: _weight(found[place], power)):
        each = found[place]
        beside = sorted(
            (addresses[other], addresses[other] + found[other].nbytes)
            for other in before
            if found[other].begin < each.end and each.begin < found[other].end
        )
        top, best = 0, (float("inf"), 0)
        for begin, end in beside:
            if begin - top >= each.nbytes:
                best = min(best, (begin - top, top))
            top = max(top, end)
        addresses[place] = top if best[0] == float("inf") else best[1]
        before.append(place)
    return addresses


def steered(found: Sequence[Lifetime], wanted: Sequence[int]) -> list[int]:
    """Return for each the nearest address to the wanted one that the allocator can be made to give."""
    given: list[int] = []
    # (address, end, until when) of those alive, ordered.
    alive: list[tuple[int, int, int]] = []
    for begin, group in groupby(zip(found, wanted, strict=True), lambda pair: pair[0].begin):
        alive = [held for held in alive if held[2] > begin]
        together = list(group)
        held = [(address, end) for address, end, _ in alive]
        spans: list[tuple[int, int]] = []
        for each, wanted_address in together:
            address = nearest(held, each.nbytes, wanted_address)
            assert address is not None, "a range without an end has room"
            spans.append((address, address + each.nbytes))
            insort(held, spans[-1])
        for _ in range(_MOST_ROUNDS):
            former, spans = spans, _given(held, spans)
            if spans == former:
                break
            held = sorted({*held} - {*former} | {*spans})
        alive += [(*span, each.end) for span, (each, _) in zip(spans, together, strict=True)]
        alive.sort()
        given += [address for address, _ in spans]
    return given


def end_of(found: Sequence[Lifetime], addresses: Sequence[int]) -> int:
    """Return the end of the range of addresses that they take."""
    ends = (address + each.nbytes for address, each in zip(addresses, found, strict=True))
    return max(ends, default=0)


def _weight(each: Lifetime, power: float) -> tuple[float, int]:
    return -each.nbytes * (each.end - each.begin) ** power, each.begin


def _given(held: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return where they come who are asked for in turn while all their spans are open, and nothing else.

    held: what is not free, ordered; the spans, too.
    """
    holes: list[list[int]] = []
    for begin, end in sorted(spans):
        next_begin = held[bisect_left(held, (end, 0))][0] if held[-1][0] >= end else end
        # What is small stays open behind it; and neighbours are one hole.
        last = next_begin if not is_large(next_begin - end) else end
        if holes and holes[-1][1] == begin:
            holes[-1][1] = last
        else:
            holes.append([begin, last])
    given = []
    for begin, end in spans:
        nbytes = end - begin
        fitting = [
            (last - first, place) for place, (first, last) in enumerate(holes) if last - first >= nbytes
        ]
        if not fitting:
            return list(spans)
        _, place = min(fitting)
        given.append((holes[place][0], holes[place][0] + nbytes))
        holes[place][0] += nbytes
    return given


def nearest(held: Sequence[tuple[int, int]], nbytes: int, wanted: int, end: int | None = None) -> int | None:
    """Return the address nearest to the wanted one that the allocator can be made to give.

    held: beginnings and ends of what is not free, ordered; end: of the range; None: it has none.
    None where no hole is large enough.
    """
    found = _addresses(held, nbytes, wanted, end)
    return min(((abs(address - wanted), address) for address in found), default=(0, None))[1]


def _addresses(
    held: Sequence[tuple[int, int]], nbytes: int, wanted: int, range_end: int | None
) -> Iterator[int]:
    """Yield addresses for so many bytes: at the beginning of each hole, at its end, and the wanted one."""
    least = growing_range.SMALL_NBYTES
    begin = 0
    for next_begin, end in (*held, *([] if range_end is None else [(range_end, range_end)])):
        last = next_begin - nbytes
        if last >= begin:
            yield begin
            for address in (last, wanted):
                if begin + least < address <= last:
                    yield address
        begin = end
    if range_end is None:
        yield begin
        if wanted > begin + least:
            yield wanted
