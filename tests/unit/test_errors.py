"""What an error says of a name that is not known, and of sizes."""

import math

import pytest

from tensile_db.errors import UnknownName, format_json, format_nbytes, format_value

MANY = [f"network{number}" for number in range(21)]


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("tensil", ["auto", "tensile"], 'Did you mean "tensile"?'),
        ("TENSILE", ["auto", "tensile"], 'Did you mean "tensile"?'),
        ("Vgg", ["VGG16", "vdnn"], 'Did you mean "VGG16"?'),
        ("size", ["image_size", "raw_shape"], 'Did you mean "image_size"?'),
        ("early_stopping", ["eps", "max_swapping_rate"], "Known: eps, max_swapping_rate."),
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


def test_a_long_name_that_is_not_known_is_shortened():
    message = UnknownName("policy", "x" * 1000, ["auto"]).message
    assert message == f'unknown policy "{"x" * 60}... (1000 characters)"'


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (2**63, "9223372036854775808"),
        (-(2**63), "-9223372036854775808"),
        (10**20, "1e+20"),
        (-(10**400), "-1e+400"),
        (1234567 * 10**300, "1.23457e+306"),
        (1e300, "1e+300"),
        (0.1, "0.1"),
        ("Infinity", "Infinity"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 60 + "... (81 characters)"),
    ],
)
def test_a_value_is_told_in_a_few_characters(value, told):
    assert format_value(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (10**400, "1e+400"),
        (True, "true"),
        (None, "null"),
        ("ä", '"ä"'),
        ([0.9], "[0.9]"),
        ([10**400], "[1" + "0" * 58 + "... (403 characters)"),
    ],
)
def test_a_value_of_json_is_told_as_json_in_a_few_characters(value, told):
    assert format_json(value) == told


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


def test_among_very_many_names_none_that_is_near_is_looked_for():
    known = [f"https://example.org/a/rather/long/label/{place}" for place in range(100_000)]
    error = UnknownName("class", known[7] + "x", known, listed_in="the values of the target")
    assert error.hint == "Known: 100000, the values of the target."
