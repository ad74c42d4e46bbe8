"""What an error says of a name that is not known, and of sizes."""

import math

import pytest

from tensile_db.errors import UnknownName, format_nbytes

MANY = [f"network{number}" for number in range(21)]


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("tensil", ["auto", "tensile"], 'Did you mean "tensile"?'),
        ("TENSILE", ["auto", "tensile"], 'Did you mean "tensile"?'),
        ("Vgg", ["VGG16", "vdnn"], 'Did you mean "VGG16"?'),
        ("x", ["b", "a"], "Known: a, b."),
        ("x", MANY, "Known: 21, listed somewhere."),
    ],
)
def test_the_nearest_names_are_suggested_else_the_known_ones(name, known, hint):
    error = UnknownName("policy", name, known, listed_in="listed somewhere")
    assert error.message == f'unknown policy "{name}"'
    assert error.hint == hint


def test_of_many_names_that_are_listed_nowhere_some_are_told():
    assert UnknownName("policy", "x", MANY).hint == f"Known: 21, among them {', '.join(sorted(MANY)[:20])}."


@pytest.mark.parametrize(
    ("nbytes", "nearest", "up", "down"),
    [
        (0, "0 B", "0 B", "0 B"),
        (1023, "1023 B", "1023 B", "1023 B"),
        (1536, "1.5 KiB", "1.5 KiB", "1.5 KiB"),
        (205_945_124, "196.4 MiB", "196.5 MiB", "196.4 MiB"),
        (2**20 - 1, "1024.0 KiB", "1024.0 KiB", "1023.9 KiB"),
        (2**50, "1024.0 TiB", "1024.0 TiB", "1024.0 TiB"),
    ],
)
def test_a_size_is_told_so_that_it_suffices_or_is_not_more(nbytes, nearest, up, down):
    assert format_nbytes(nbytes) == nearest
    assert format_nbytes(nbytes, math.ceil) == up
    assert format_nbytes(nbytes, math.floor) == down
