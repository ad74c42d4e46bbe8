"""Which of many cases alike `make test` takes."""

from itertools import product

import pytest

from tests.examples import one_in


def left(count, cases):
    return [case.values for case in one_in(count, cases) if not case.marks]


def test_of_single_values_one_in_so_many_is_left():
    assert left(3, "abcdefg") == [("a",), ("d",), ("g",)]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7])
def test_each_name_is_left_in_its_place_with_a_part_of_the_cases(count):
    cases = list(product("abcdef", range(13), ("x", "y")))
    found = left(count, cases)
    names, numbers, others = (set(values) for values in zip(*found, strict=True))
    assert (names, others) == (set("abcdef"), {"x", "y"})
    assert numbers <= set(range(13))
    assert len(cases) / count <= len(found) <= len(cases) / count + 1 + 6 + 2
