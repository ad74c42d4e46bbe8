"""The space of a search: which arguments and options vary, and over what values.

Runs inside PostgreSQL, and in the worker, which begins the trials.  A space is a JSON object with an entry
for each name: {"choices": [...]}, or {"low": ..., "high": ...} with "step" or "log" besides.
"""

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from tensile_db.errors import InvalidRequest, UnknownName, format_json
from tensile_db.udf.options import OPTIONS, kind_reads, optimizer_reads, wanted_of
from tensile_db.udf.ranges import INT8_MAX, WHOLE_ARGUMENTS

Spec = Mapping[str, Any]
Space = Mapping[str, Spec]

#: The most choices of one name, and the most points of a grid.
MOST_CHOICES = 1000
MOST_POINTS = 10_000

_INTEGER, _NUMBER, _TEXT, _OTHER = "a whole number", "a number", "a text", ""

#: Arguments of a training that may vary, with what their values are.
ARGUMENTS: Mapping[str, str] = {
    "architecture": _TEXT,
    "epochs": _INTEGER,
    "batch_size": _INTEGER,
    "optimizer": _TEXT,
    "learning_rate": _NUMBER,
    "seed": _INTEGER,
}

#: Options that may vary.
_OPTIONS: Mapping[str, str] = {
    "betas": _OTHER,
    "drop_path": _NUMBER,
    "dropout": _NUMBER,
    "eps": _NUMBER,
    "hidden_units": _OTHER,
    "image_size": _INTEGER,
    "learning_rate_schedule": _TEXT,
    "max_gradient_norm": _NUMBER,
    "momentum": _NUMBER,
    "precision": _TEXT,
    "warmup_epochs": _NUMBER,
    "weight_decay": _NUMBER,
}

#: What decides on which rows a model is trained and measured, how these count, or where and how a job runs.
_COMMON = frozenset(
    {"source", "target", "features", "model", "validation", "metric", "priority", "memory_limit", "policy"}
    | (OPTIONS.keys() - _OPTIONS.keys())
)

#: The largest number of a space, as SQL's.
_MOST = INT8_MAX
#: The most steps of a range that can be told apart.
_MOST_STEPS = 2**53

#: What a range of a package's own option may have.
_ANY_NUMBER = f"a number from {-_MOST:g} to {_MOST:g}"

_KEYS = ("choices", "high", "log", "low", "step")


def check_space(space: Any, *, has_others: bool) -> None:
    """Refuse a space that is none; what single values may be is looked at elsewhere.

    has_others: an architecture comes from a package, which alone knows the options it takes besides.
    Raises InvalidRequest, UnknownName.
    """
    if not isinstance(space, dict) or not space:
        raise InvalidRequest(
            "space is no JSON object with something to vary",
            hint='Write it as \'{"learning_rate": {"low": 1e-4, "high": 0.1, "log": true}}\'.',
        )
    for name, spec in space.items():
        if name in _COMMON:
            raise InvalidRequest(
                f'"{name}" is the same for all trials and cannot vary',
                hint="Leave it out of space, and give it as an argument or option of the search.",
            )
        if name not in ARGUMENTS and name not in _OPTIONS and not has_others:
            raise UnknownName("argument or option in space", name, [*ARGUMENTS, *_OPTIONS])
        _check_spec(name, spec)


def is_whole(name: str, spec: Spec) -> bool:
    """Whether a range has whole numbers only."""
    kind = _kind(name)
    if kind == _OTHER:
        return all(_is_whole(spec.get(key, 0)) for key in ("low", "high", "step"))
    return kind == _INTEGER


def extremes(spec: Spec) -> list[Any]:
    """Return the values of which all others are right where these are."""
    return list(spec["choices"]) if "choices" in spec else [spec["low"], spec["high"]]


def points_of(name: str, spec: Spec) -> list[Any]:
    """Return the values that a grid tries, in order.  Raises InvalidRequest where they have no end."""
    if "choices" in spec:
        return list(spec["choices"])
    if spec.get("log") or (spec.get("step") is None and not is_whole(name, spec)):
        raise InvalidRequest(
            f'a grid cannot try every "{name}" from {spec["low"]} to {spec["high"]}',
            hint='Name the values by "choices", add a "step", or use another method, e.g. random.',
        )
    count = _steps(spec) + 1
    if count > MOST_POINTS:
        raise _too_many(count)
    return [_step(name, spec, place) for place in range(count)]


def last_of(name: str, spec: Spec) -> Any:
    """Return the high end of a range as its steps meet it."""
    return spec["high"] if spec.get("step") is None else _step(name, spec, _steps(spec))


def nearest_step(name: str, spec: Spec, value: float) -> int | float:
    """Return a value of a range with steps without what rounding has added to it."""
    return _step(name, spec, round((value - spec["low"]) / spec["step"]))


def grid_size(space: Space) -> int:
    """Return how many points a grid has.  Raises InvalidRequest where they have no end, or are too many."""
    count = math.prod(len(points_of(name, spec)) for name, spec in space.items())
    if count > MOST_POINTS:
        raise _too_many(count)
    return count


def candidates(space: Space, base: Mapping[str, Any], name: str) -> list[Any]:
    """Return the values that an argument may have in some trial."""
    return extremes(space[name]) if name in space else [base[name]]


def trial_request(
    base: Mapping[str, Any],
    params: Mapping[str, Any],
    learning_rates: Mapping[str, float],
    kinds: Mapping[str, str],
) -> dict[str, Any]:
    """Return what a trial's request has of its own, by column of tensile.jobs.

    base: the search's; its learning_rate may be None, for the optimizer's default (learning_rates).
    kinds: of the search's architectures (tensile.architectures.kind).
    Options that the trial's optimizer or architecture does not read are left out.
    """
    request = {name: params.get(name, base[name]) for name in ARGUMENTS}
    options = dict(base["options"]) | {
        name: value for name, value in params.items() if name not in ARGUMENTS and value is not None
    }
    optimizer, kind = request["optimizer"], kinds.get(request["architecture"])
    request["options"] = {
        name: value
        for name, value in options.items()
        if optimizer_reads(optimizer, name) and kind_reads(kind, name)
    }
    if request["learning_rate"] is None:
        request["learning_rate"] = learning_rates.get(optimizer)
    return request


def _check_spec(name: str, spec: Any) -> None:
    if not isinstance(spec, dict):
        raise InvalidRequest(
            f'"{name}" in space is no JSON object',
            hint=f'Write "{name}": {{"choices": [...]}}, or {{"low": ..., "high": ...}} for a range.',
        )
    for key in spec:
        if key not in _KEYS:
            raise UnknownName(f'key of "{name}" in space', key, _KEYS)
    if "choices" in spec:
        _check_choices(name, spec)
    else:
        _check_range(name, spec)


def _check_choices(name: str, spec: Spec) -> None:
    choices = spec["choices"]
    if len(spec) > 1:
        raise InvalidRequest(
            f'"{name}" in space has both choices and a range',
            hint='Give either "choices" alone, or "low" and "high".',
        )
    if not isinstance(choices, list) or not choices:
        raise InvalidRequest(
            f'the choices of "{name}" are no list with something in it',
            hint=f'Name at least one value, or leave "{name}" out of space.',
        )
    if len(choices) > MOST_CHOICES:
        raise InvalidRequest(
            f'"{name}" has {len(choices)} choices, more than {MOST_CHOICES}',
            hint="Name fewer, or give a range.",
        )
    seen = [json.dumps(choice, sort_keys=True) for choice in choices]
    if len(set(seen)) < len(seen):
        raise InvalidRequest(f'the choices of "{name}" name a value twice', hint="Name each value once.")
    is_one = _CHECKS[_kind(name)]
    for choice in choices:
        if not is_one(choice):
            raise InvalidRequest(
                f'"{name}" cannot be {format_json(choice)}', hint=f"Its choices are each {_wanted(name)}."
            )


def _check_range(name: str, spec: Spec) -> None:
    kind = _kind(name)
    if kind == _TEXT or name in ("betas", "hidden_units"):
        raise InvalidRequest(f'"{name}" has no range', hint='Name its values by "choices".')
    if "low" not in spec or "high" not in spec:
        raise InvalidRequest(
            f'"{name}" in space has neither choices nor a low and a high end',
            hint='Give "choices", or both "low" and "high".',
        )
    is_one = _CHECKS[kind or _NUMBER]
    for key in ("low", "high", "step"):
        if spec.get(key) is not None and not is_one(spec[key]):
            raise InvalidRequest(
                f'"{key}" of "{name}" cannot be {format_json(spec[key])}',
                hint=f"It is {_wanted(name) if kind else _ANY_NUMBER}.",
            )
    low, high, step, log = spec["low"], spec["high"], spec.get("step"), spec.get("log")
    if low is None or high is None or low >= high:
        raise InvalidRequest(
            f'the low end of "{name}", {format_json(low)}, is not below the high end, {format_json(high)}',
            hint="Exchange them, or leave it out of space and give the one value as an argument.",
        )
    if log not in (None, True, False):
        raise InvalidRequest(f'"log" of "{name}" cannot be {format_json(log)}', hint="It is true or false.")
    if log and low <= 0:
        raise InvalidRequest(
            f'the low end of "{name}" must be above 0 on a logarithmic scale, got {low}',
            hint='Raise "low", or leave "log" out.',
        )
    if log and step is not None:
        raise InvalidRequest(f'"{name}" has a step on a logarithmic scale', hint='Leave out "step" or "log".')
    if step is not None and not 0 < step <= high - low:
        raise InvalidRequest(
            f'the step of "{name}" must be above 0 and at most {high - low:g}, got {step}',
            hint='Change "step", or leave it out.',
        )
    if step is not None and Decimal(str(high)) - Decimal(str(low)) > _MOST_STEPS * Decimal(str(step)):
        raise InvalidRequest(
            f'the step of "{name}" is too small for its range, got {step}', hint='Leave out "step".'
        )


def _steps(spec: Spec) -> int:
    low, high, step = (Decimal(str(spec.get(key) or 0)) for key in ("low", "high", "step"))
    return int((high - low) // (step or 1))


def _step(name: str, spec: Spec, place: int) -> int | float:
    # As people write them: three steps of 0.1 are 0.3.
    value = Decimal(str(spec["low"])) + place * Decimal(str(spec.get("step") or 1))
    return int(value) if is_whole(name, spec) else float(value)


def _kind(name: str) -> str:
    return ARGUMENTS.get(name) or _OPTIONS.get(name, _OTHER)


def _wanted(name: str) -> str:
    """Return what each value of a name is to be."""
    if name in WHOLE_ARGUMENTS:
        low, high = WHOLE_ARGUMENTS[name]
        return f"{_INTEGER} from {low} to {high}"
    if name == "learning_rate":
        return f"a number above 0 to {_MOST:g}"
    kind = _kind(name)
    # Of those the options' own checks tell the range.
    return wanted_of(name) if kind in (_INTEGER, _NUMBER) else kind or "a value"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST


def _is_number(value: Any) -> bool:
    # Whole numbers have no end, and most of them are no floats.
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _too_many(count: int) -> InvalidRequest:
    return InvalidRequest(
        f"the grid has {count} points, more than {MOST_POINTS}",
        hint="Give fewer choices or larger steps, or use another method, e.g. random.",
    )


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    _INTEGER: _is_whole,
    _NUMBER: _is_number,
    _TEXT: lambda value: isinstance(value, str),
    _OTHER: lambda value: value is not None,
}
