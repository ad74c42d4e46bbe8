"""The keys that `options` may have, and what each may hold.

Runs inside PostgreSQL.  A new option is a line in OPTIONS; the worker reads it from tensile.jobs.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tensile_db.errors import InvalidRequest, UnknownName
from tensile_db.udf.precision import wrong_precision


def _number(
    low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> Callable[[Any], str]:
    """Return a check for a number in a range; "" means that it is one."""
    span = f"{'above' if open_low else 'from'} {low:g} {'to below' if open_high else 'to'} {high:g}"

    def complaint(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"a number {span}"
        inside = (value > low if open_low else value >= low) and (
            value < high if open_high else value <= high
        )
        return "" if inside else f"a number {span}"

    return complaint


def _whole(low: int, high: int) -> Callable[[Any], str]:
    def complaint(value: Any) -> str:
        inside = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return "" if inside else f"a whole number from {low} to {high}"

    return complaint


def _list(check: Callable[[Any], str], shortest: int, longest: int) -> Callable[[Any], str]:
    length = f"{shortest} to {longest}" if shortest < longest else str(shortest)

    def complaint(value: Any) -> str:
        fits = isinstance(value, list) and shortest <= len(value) <= longest
        return "" if fits and not any(map(check, value)) else f"a list of {length}, each {check(None)}"

    return complaint


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value else "a text"


def _either(one: str, other: str) -> Callable[[Any], str]:
    return lambda value: "" if value in (one, other) else f'either "{one}" or "{other}"'


_SIZE = _whole(1, 8192)
_SHARE = _number(0, 1, open_high=True)

#: Name -> what a wrong value should have been, or "".
OPTIONS: Mapping[str, Callable[[Any], str]] = {
    "betas": _list(_SHARE, 2, 2),
    "checkpoint_iterations": _whole(1, 2**31 - 1),
    "checkpoint_seconds": _number(0, 1e9, open_low=True),
    "device": _text,
    "drop_path": _SHARE,
    "dropout": _SHARE,
    "eps": _number(0, 1, open_low=True),
    "hidden_units": _list(_whole(1, 65536), 1, 32),
    "image_size": _SIZE,
    "max_swapping_rate": _number(0, 1),
    "memory_format": _either("contiguous", "channels_last"),
    "momentum": _SHARE,
    "precision": wrong_precision,
    "raw_shape": _list(_SIZE, 2, 3),
    "task": _either("classification", "regression"),
    "weight_decay": _number(0, 1e3),
}

#: Options that only some optimizers read.
_READ_BY = {
    "betas": ("adam", "adamw"),
    "eps": ("adam", "adamw"),
    "momentum": ("sgd", "momentum"),
}


def check_options(options: Any, optimizer: str, *, has_others: bool) -> dict[str, Any]:
    """Return the options, nulls left out.

    has_others: the architecture comes from a package, which alone knows the options it takes besides.
    Raises UnknownName, InvalidRequest.
    """
    if not isinstance(options, dict):
        raise InvalidRequest("options is no JSON object", hint="Write it as '{\"image_size\": 64}'.")
    for name, value in options.items():
        if name not in OPTIONS and not has_others:
            raise UnknownName("option", name, OPTIONS)
        if name not in OPTIONS or value is None:
            continue
        wanted = OPTIONS[name](value)
        if wanted:
            raise InvalidRequest(f'option "{name}" cannot be {value!r}', hint=f"It is {wanted}.")
        if not reads_option(optimizer, name):
            raise InvalidRequest(
                f'the optimizer "{optimizer}" has no option "{name}"',
                hint=f"Leave it out, or use optimizer => '{_READ_BY[name][0]}'.",
            )
    return {name: value for name, value in options.items() if value is not None}


def reads_option(optimizer: str, name: str) -> bool:
    """Whether an option means anything to a job with this optimizer."""
    return optimizer in _READ_BY.get(name, (optimizer,))
