"""Places for memory whose lifetimes are known: nobody's overlap who live at once."""

from itertools import combinations
from random import Random

import pytest

from bench.placing import POWERS, lifetimes, placed
from bench.steered import Lifetime, end_of, steered
from tensile_db.scheduler.sharing import growing_range
from tensile_db.scheduler.sharing.growing_range import SMALL_NBYTES, in_pages

#: Of the allocator's sizes.
GRANULE = 512


def random_lifetimes(random, count=40):
    begins = random.sample(range(1000), count)
    return [
        Lifetime(
            begin, begin + random.randrange(1, 200), SMALL_NBYTES + GRANULE * random.randrange(1, 20_000)
        )
        for begin in begins
    ]


def assert_apart(places, found):
    """Assert that all have places, and those who live at once have them apart."""
    assert sorted(each for _, each in places) == sorted(found)
    for (one, first), (other, second) in combinations(places, 2):
        if first.begin < second.end and second.begin < first.end:
            assert one + first.nbytes <= other or other + second.nbytes <= one


def test_lifetimes_are_from_what_is_taken_to_what_is_given():
    asked = [(True, "a", 500), (True, "b", 700), (False, "a", 500), (True, "c", 1), (False, "c", 1)]
    assert lifetimes(asked) == [Lifetime(1, 3, 512), Lifetime(4, 5, 512), Lifetime(2, 6, 1024)]


@pytest.mark.parametrize("power", POWERS)
def test_who_lives_at_once_has_places_apart_also_as_they_are_given(power):
    random = Random(1)
    for _ in range(20):
        found = random_lifetimes(random)
        places = placed(found, power)
        assert_apart(places, found)
        assert_apart(steered(places), found)


def test_a_hole_that_is_left_is_used():
    long, short, late = Lifetime(0, 9, 4), Lifetime(0, 3, 6), Lifetime(4, 9, 5)
    assert end_of(placed([long, short, late], 0.0)) == 10


class PluggedRange:
    """The allocator's range of large tensors, of which all other holes are taken while one is asked for."""

    def __init__(self, nbytes):
        self._range = growing_range._Range(growing_range.PAGE_NBYTES)
        self._range.take("all", nbytes)
        self._range.give("all")
        self.nbytes = self._range.nbytes
        self._plugs = {}

    def take(self, holder, nbytes, wanted):
        """Have the allocator give this holder the wanted address; return what it gives."""
        # The hole at the end is given last, whatever its size.
        for begin, size in sorted(self._holes(), key=lambda hole: sum(hole) == self.nbytes):
            if size > SMALL_NBYTES:
                self._plug(begin, size)
        (opened,) = [begin for begin, size in self._plugs.items() if begin <= wanted < begin + size]
        self._range.give(("plug", opened))
        del self._plugs[opened]
        if wanted > opened:
            self._plug(opened, wanted - opened)
        self._range.take(holder, nbytes)
        for begin in self._plugs:
            self._range.give(("plug", begin))
        self._plugs.clear()
        return self._range._held[holder][0]

    def give(self, holder):
        self._range.give(holder)

    def _holes(self):
        return [(begin, size) for size, begin in self._range._holes]

    def _plug(self, begin, size):
        self._range.take(("plug", begin), size)
        assert self._range._held["plug", begin] == (begin, size)
        self._plugs[begin] = size


@pytest.mark.parametrize("power", POWERS)
def test_the_allocator_gives_these_places_where_all_other_holes_are_taken(power):
    random = Random(2)
    for _ in range(10):
        given = steered(placed(random_lifetimes(random), power))
        memory = PluggedRange(in_pages(end_of(given)))
        alive = []
        for number, (address, each) in enumerate(given):
            for former, end in alive:
                if end <= each.begin:
                    memory.give(former)
            alive = [held for held in alive if held[1] > each.begin]
            assert memory.take(number, each.nbytes, address) == address
            alive.append((number, each.end))
        assert memory.nbytes == memory._range.nbytes
