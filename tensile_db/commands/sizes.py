"""Sizes as people write them on a command line."""

import re

from tensile_db.errors import InvalidRequest

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
#: What the catalog's columns hold.
MOST_NBYTES = 2**63 - 1
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)


def parse_nbytes(text: str) -> int:
    """Return a size in bytes: '2GiB', '2G' and '2048M' are binary as in PostgreSQL, '2GB' is decimal.

    Raises InvalidRequest.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidRequest(f'"{text}" is no size', hint="Write 512MiB, 2GiB or a number of bytes.")
    number, unit, binary, letter = match.groups()
    units = _DECIMAL_UNITS if unit and letter and not binary else _UNITS
    size = float(number) * units[unit.lower()]
    if size > MOST_NBYTES:
        raise InvalidRequest(f'"{text}" is no size', hint="No machine has so much: give less, e.g. 24GiB.")
    nbytes = int(size)
    if nbytes < 1:
        raise InvalidRequest(f'"{text}" is no size', hint="It must be at least one byte.")
    return nbytes


def parse_rate(text: str) -> int:
    """Return a rate in bytes a second: '12GB/s', '12GB' and '12000000000' are the same.

    Raises InvalidRequest.
    """
    return parse_nbytes(re.sub(r"/s\s*$", "", text))
