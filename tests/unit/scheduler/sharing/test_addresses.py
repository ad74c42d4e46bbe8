"""Addresses for memory whose lifetimes are known: nobody's overlap who live at once."""

from itertools import combinations
from random import Random

import pytest

from tensile_db.scheduler.sharing.addresses import (
    POWERS,
    Lifetime,
    best_addresses,
    end_of,
    lifetimes,
    nearest,
    placed,
    steered,
)
from tensile_db.scheduler.sharing.growing_range import SMALL_NBYTES, Asked
from tests.graphs.random_lifetimes import GRANULE, random_lifetimes

MIB = 2**20


def assert_apart(found, addresses):
    """Assert that those who live at once are apart."""
    assert all(address >= 0 for address in addresses)
    placed_ones = list(zip(found, addresses, strict=True))
    for (first, one), (second, other) in combinations(placed_ones, 2):
        if first.begin < second.end and second.begin < first.end:
            assert one + first.nbytes <= other or other + second.nbytes <= one


def test_lifetimes_are_of_what_is_large_from_what_is_taken_to_what_is_given():
    a, b, c, d = (("a", 0), 3 * MIB), (("b", 0), 2 * MIB), (None, 2 * MIB + 1), (("d", 0), MIB)
    asked = [
        [Asked(True, *a), Asked(True, *b), Asked(True, *c), Asked(False, *c)],
        [Asked(True, *d), Asked(False, *d)],
        [Asked(False, *a)],
    ]
    assert lifetimes(asked) == [
        Lifetime(0, 5, 3 * MIB),
        # Never given back.
        Lifetime(0, 5, 2 * MIB),
        Lifetime(0, 1, 2 * MIB + GRANULE),
    ]


@pytest.mark.parametrize("power", POWERS)
def test_who_lives_at_once_has_places_apart_also_as_they_are_given(power):
    random = Random(1)
    for _ in range(20):
        found = random_lifetimes(random)
        wanted = placed(found, power)
        assert_apart(found, wanted)
        assert_apart(found, steered(found, wanted))


def test_a_hole_that_is_left_is_used():
    found = [Lifetime(0, 9, 4), Lifetime(0, 3, 6), Lifetime(4, 9, 5)]
    assert end_of(found, placed(found, 0.0)) == 10


def test_of_neighbours_that_are_asked_for_together_the_first_comes_first():
    found = [Lifetime(0, 9, 5 * MIB), Lifetime(0, 9, 3 * MIB)]
    assert steered(found, [3 * MIB, 0]) == [0, 5 * MIB]
    # Somebody is between them.
    found = [Lifetime(0, 9, 2 * MIB), *(each._replace(begin=1) for each in found)]
    assert steered(found, [3 * MIB, 5 * MIB, 0]) == [3 * MIB, 5 * MIB, 0]


@pytest.mark.parametrize(
    ("wanted", "want"),
    [
        (10 * MIB, 10 * MIB),
        # What would have to be taken before it is small, and comes from elsewhere.
        (11 * MIB, 10 * MIB),
        (11 * MIB + GRANULE, 11 * MIB + GRANULE),
        # At the hole's end.
        (17 * MIB, 16 * MIB),
        (24 * MIB, 30 * MIB),
        (99 * MIB, 36 * MIB),
        (0, 10 * MIB),
    ],
)
def test_a_place_is_a_holes_beginning_or_by_more_than_what_is_small_behind_it(wanted, want):
    held = [(0, 10 * MIB), (20 * MIB, 30 * MIB)]
    assert nearest(held, 4 * MIB, wanted, 40 * MIB) == want


def test_where_no_hole_is_large_enough_nothing_is_found_but_in_a_range_without_end():
    held = [(0, 10 * MIB), (20 * MIB, 30 * MIB)]
    assert nearest(held, 11 * MIB, 0, 40 * MIB) is None
    assert nearest(held, 11 * MIB, 0) == 30 * MIB


def test_the_best_of_some_ways_is_found():
    random = Random(3)
    for _ in range(10):
        found = random_lifetimes(random)
        ends = [end_of(found, steered(found, placed(found, power))) for power in POWERS]
        assert end_of(found, best_addresses(found)) == min(ends)
    assert best_addresses([]) == ()
    assert min(each.nbytes for each in found) > SMALL_NBYTES
