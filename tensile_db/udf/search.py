"""From the arguments of tensile_search to a request, and from what came of it to a row.

Runs inside PostgreSQL, as the caller.
"""

from typing import Any

from tensile_db.errors import InvalidRequest, UnknownName
from tensile_db.udf.options import reads_option
from tensile_db.udf.request import OPTIMIZERS, network_request, source_request
from tensile_db.udf.session import Session
from tensile_db.udf.space import (
    MOST_POINTS,
    Space,
    candidates,
    check_space,
    extremes,
    grid_size,
    trial_request,
)

METHODS = ("grid", "random", "tpe", "halving", "hyperband")
METRICS = ("loss", "accuracy", "mse", "rmse", "mae")

#: Where none are named; a grid tries all of its points.
_TRIALS = 10
_MAX_PARALLEL = 2
_MOST_PARALLEL = 1000

Arguments = dict[str, Any]


def search_request(session: Session, arguments: Arguments) -> dict[str, Any]:
    """Return the request of a search; its key "search" has columns of tensile.search_requests.

    arguments: as tensile_search has them; null stands for the default.
    Raises what errors.py has for wrong input.
    """
    method = _one_of("method", arguments["method"], METHODS, "random")
    metric = _one_of("metric", arguments["metric"], METRICS, "loss")
    max_parallel = _count("max_parallel", arguments["max_parallel"], _MAX_PARALLEL, _MOST_PARALLEL)
    if arguments["validation"] == 0:
        raise InvalidRequest(
            "a search compares its trials on rows held out, and validation is 0",
            hint="validation => 0.1 holds out every tenth row.",
        )
    space = arguments["space"]
    base = _base(arguments)
    check_space(space, has_others=_has_plugin(session, space, base))
    _require_readers(space, base)
    request, wants_images = _check_values(session, arguments, space, base)
    trials = _trials(method, arguments["trials"], space)
    rows = source_request(session, arguments, wants_images=wants_images)
    own = {
        # A trial's may differ, and the optimizer's default is the trial's own.
        "architecture": base["architecture"],
        "model": request["model"],
        "optimizer": base["optimizer"],
        "learning_rate": None if "learning_rate" in space else base["learning_rate"],
        # Where trials have seeds of their own, this one decides which.
        "seed": base["seed"] or 0,
        "options": base["options"],
    }
    search = {
        "space": space,
        "method": method,
        "trials": trials,
        "max_parallel": max_parallel,
        "metric": metric,
    }
    return request | rows | own | {"kind": "search", "search": search}


def search_row(status: dict[str, Any]) -> dict[str, Any]:
    """Return the row of tensile_search from the row of a search that succeeded."""
    result = status["result"] or {}
    best = result.get("best") or {}
    return {
        "search_id": status["id"],
        "trial": best.get("trial"),
        "job_id": best.get("job_id"),
        "model": status["model"],
        "version": status["model_version"],
        "params": best.get("params"),
        "value": best.get("value"),
        "metric": result.get("metric"),
        "begun": result.get("begun"),
        "pruned": result.get("pruned"),
        "failed": result.get("failed"),
        "seconds": status["elapsed_s"],
    }


def _base(arguments: Arguments) -> dict[str, Any]:
    """Return what the trials have in common, with tensile_train's defaults where there is one."""
    options = {} if arguments["options"] is None else arguments["options"]
    if not isinstance(options, dict):
        raise InvalidRequest("options is no JSON object", hint="Write it as '{\"image_size\": 64}'.")
    return {
        "architecture": arguments["architecture"],
        "epochs": arguments["epochs"],
        "batch_size": arguments["batch_size"],
        "optimizer": arguments["optimizer"] or "momentum",
        "learning_rate": arguments["learning_rate"],
        "seed": arguments["seed"],
        "options": {name: value for name, value in options.items() if value is not None},
    }


def _check_values(
    session: Session, arguments: Arguments, space: Space, base: dict[str, Any]
) -> tuple[dict[str, Any], bool]:
    """Check each value as tensile_train would; return a request, and whether any trial wants images.

    Each is checked in a trial of the first values of all others.  Raises as tensile_train does.
    """
    first = {name: extremes(spec)[0] for name, spec in space.items()}
    named = {"model": arguments["model"] or first.get("architecture") or base["architecture"]}
    request, wants_images = _checked(session, arguments | named, base, first)
    for name, spec in space.items():
        for value in extremes(spec):
            params = first | {name: value}
            if "optimizer" in space and name != "optimizer" and not reads_option(params["optimizer"], name):
                readers = [it for it in extremes(space["optimizer"]) if reads_option(it, name)]
                params["optimizer"] = readers[0]
            _, takes_images = _checked(session, arguments | named, base, params)
            wants_images = wants_images or takes_images
    return request, wants_images


def _checked(
    session: Session, arguments: Arguments, base: dict[str, Any], params: dict[str, Any]
) -> tuple[dict[str, Any], bool]:
    return network_request(session, arguments | trial_request(base, params, {}))


def _require_readers(space: Space, base: dict[str, Any]) -> None:
    """Refuse an option that no trial's optimizer would read; those that do not, go without it."""
    optimizers = candidates(space, base, "optimizer")
    for optimizer in optimizers:
        if optimizer not in OPTIMIZERS:
            raise UnknownName("optimizer", optimizer, OPTIMIZERS)
    for name in (*space, *base["options"]):
        if not any(reads_option(optimizer, name) for optimizer in optimizers):
            readers = [it for it in OPTIMIZERS if reads_option(it, name)]
            raise InvalidRequest(
                f'no optimizer of this search has an option "{name}"',
                hint=f"Leave it out, or let the optimizer be one that has: {', '.join(readers)}.",
            )


def _trials(method: str, asked: int | None, space: Space) -> int:
    trials = _count("trials", asked, _TRIALS, MOST_POINTS)
    if method != "grid":
        return trials
    points = grid_size(space)
    return points if asked is None else min(asked, points)


def _has_plugin(session: Session, space: Any, base: dict[str, Any]) -> bool:
    """Whether an architecture comes from a package; the space may be anything yet."""
    names = [base["architecture"]]
    if isinstance(space, dict) and isinstance(space.get("architecture"), dict):
        choices = space["architecture"].get("choices")
        names = choices if isinstance(choices, list) else names
    found: bool = session.value(
        "SELECT EXISTS (SELECT FROM tensile.architectures WHERE kind = 'plugin' AND name = ANY ({names}))",
        names=("text[]", [name for name in names if isinstance(name, str)]),
    )
    return found


def _one_of(kind: str, name: str | None, known: tuple[str, ...], default: str) -> str:
    if name is None:
        return default
    if name not in known:
        raise UnknownName(kind, name, known)
    return name


def _count(name: str, value: int | None, default: int, most: int) -> int:
    if value is None:
        return default
    if not 1 <= value <= most:
        raise InvalidRequest(
            f"{name} must be from 1 to {most}, got {value}", hint=f"The default is {default}."
        )
    return value
