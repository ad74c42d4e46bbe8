"""Simulated machines by name: those of `scheduler/machines.py`, and ones described in files."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from tensile_db.errors import InvalidRequest, format_json
from tensile_db.scheduler.machines import MACHINES, machine
from tensile_db.scheduler.plan import DeviceSpec

_PREFIX = "sim:"
_SUFFIX = ".json"

#: Key of a description that names the machine which has what the description leaves out.
_LIKE = "like"

_FLAGS = frozenset(("duplex", "replays", "steers"))
#: Where nothing is meant by 0.
_MAY_BE_0 = frozenset(("op_overhead_ns", "copies_cost_bytes_per_s"))
#: Of a time, a quarter of an hour for an op: what adds them up still is a 64-bit integer.
_MOST = {"op_overhead_ns": 10**12}
_ELSE_MOST = 2**62 - 1


def find_machine(name: str) -> DeviceSpec:
    """Return the machine called sim:NAME, or, of sim:FILE.json, the one that the file describes.

    A description is an object with the fields of DeviceSpec but its name, which is the file's; `like` may
    name a machine that has the others.  Raises UnknownName and InvalidRequest.
    """
    if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
        return machine(name)
    file = Path(name.removeprefix(_PREFIX))
    try:
        description = json.loads(file.read_bytes())
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {file}: {error.strerror or error}",
            hint=f"Describe a machine there, or name one that is known: {', '.join(MACHINES)}.",
        ) from error
    except ValueError as error:
        raise InvalidRequest(f"{file} is no JSON: {error}", hint=_example()) from error
    if not isinstance(description, dict):
        raise InvalidRequest(f"{file} holds no JSON object", hint=_example())
    return _described(file, description)


def _described(file: Path, description: Mapping[str, Any]) -> DeviceSpec:
    known = {field.name: field for field in fields(DeviceSpec) if field.name != "name"}
    if unknown := sorted(description.keys() - known.keys() - {_LIKE, "name"}):
        raise InvalidRequest(
            f"{file} says {format_json(unknown[0])} of a machine, which is nothing that is asked",
            hint=f"Of a machine may be said: {', '.join((_LIKE, *known))}.",
        )
    values: dict[str, Any] = {}
    if _LIKE in description:
        like = _like(file, description[_LIKE])
        values = {name: getattr(like, name) for name in known}
    for name in known.keys() & description.keys():
        values[name] = _checked(file, name, description[name])
    needed = [name for name, field in known.items() if field.default is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise InvalidRequest(
            f"{file} does not say {', '.join(missing)}",
            hint=f'Say it, or say which machine it is like, e.g. {{"{_LIKE}": "a6000", ...}}.',
        )
    return DeviceSpec(name=f"{_PREFIX}{file.stem}", **values)


def _like(file: Path, name: object) -> DeviceSpec:
    """Return the machine of that name, with the prefix of devices or without."""
    known = MACHINES.get(name.removeprefix(_PREFIX)) if isinstance(name, str) else None
    if known is None:
        raise InvalidRequest(
            f"{file}: {_LIKE} is {format_json(name)}", hint=f"It is one of {', '.join(MACHINES)}."
        )
    return known


def _checked(file: Path, name: str, value: object) -> bool | int:
    if name in _FLAGS:
        if isinstance(value, bool):
            return value
        raise InvalidRequest(f"{file}: {name} is {format_json(value)}", hint="It is true or false.")
    least, most = 0 if name in _MAY_BE_0 else 1, _MOST.get(name, _ELSE_MOST)
    # 24e9 is read as a float.
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and least <= value <= most
        and value == int(value)
    ):
        return int(value)
    limits = f"from {least} to {most}" if name in _MOST else f"at least {least} and less than 2^62"
    raise InvalidRequest(f"{file}: {name} is {format_json(value)}", hint=f"It is a whole number, {limits}.")


def _example() -> str:
    return f'Write e.g. {{"{_LIKE}": "a6000", "d2h_bytes_per_s": 12e9, "h2d_bytes_per_s": 12e9}}.'
