"""Places for memory whose lifetimes are known: nobody's overlap who live at once."""

from itertools import combinations
from random import Random

import pytest

from bench.placing import ORDERS, Lifetime, lifetimes, placed


def test_lifetimes_are_from_what_is_taken_to_what_is_given():
    asked = [(True, "a", 5), (True, "b", 7), (False, "a", 5), (True, "c", 1), (False, "c", 1)]
    assert lifetimes(asked) == [Lifetime(1, 3, 5), Lifetime(4, 5, 1), Lifetime(2, 6, 7)]


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_who_lives_at_once_has_places_apart(order):
    random = Random(1)
    for _ in range(20):
        begins = [random.randrange(50) for _ in range(40)]
        found = [
            Lifetime(begin, begin + random.randrange(1, 20), random.randrange(1, 100)) for begin in begins
        ]
        places = placed(found, order)
        assert sorted(each for _, each in places) == sorted(found)
        for (one, first), (other, second) in combinations(places, 2):
            if first.begin < second.end and second.begin < first.end:
                assert one + first.nbytes <= other or other + second.nbytes <= one


def test_a_hole_that_is_left_is_used():
    long, short, late = Lifetime(0, 9, 4), Lifetime(0, 3, 6), Lifetime(4, 9, 5)
    places = placed([long, short, late], ORDERS["largest first"])
    assert max(address + each.nbytes for address, each in places) == 10
