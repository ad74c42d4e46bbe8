"""Checks the options that a request gives an architecture."""

from collections.abc import Mapping, Sequence
from typing import Any

from tensile_db.errors import InvalidRequest, UnknownName


def known_options(owner: str, options: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Return the options that are given, those that are None left out; raise UnknownName for another."""
    for option in options:
        if option not in known:
            raise UnknownName(f"option of {owner}", option, known)
    return {option: value for option, value in options.items() if value is not None}


def fraction(owner: str, option: str, value: object) -> float:
    """Return a number from 0 to below 1; raise InvalidRequest for another."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < 1.0:
        return float(value)
    raise InvalidRequest(
        f"{owner}: {option} is {value!r}", hint=f"Give {option} as a number from 0 to below 1."
    )
