"""What an error says of a name that is not known."""

import pytest

from tensile_db.errors import UnknownName

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
