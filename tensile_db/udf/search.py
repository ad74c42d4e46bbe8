"""From the arguments of tensile_search to a request, and from what came of it to a row.

Runs inside PostgreSQL, as the caller.
"""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from tensile_db.errors import InvalidRequest, UnknownName, format_json
from tensile_db.udf.initial_model import InitialModel, find_initial_model
from tensile_db.udf.options import (
    OPTIONS,
    PACKAGES_KIND,
    kind_reads,
    optimizer_reads,
    optimizers_that_read,
    unknown_option,
)
from tensile_db.udf.pretrained import with_pretrained
from tensile_db.udf.request import (
    DEFAULTS,
    OPTIMIZERS,
    check_class_weights,
    find_reading,
    network_request,
    reading_request,
    task_of,
)
from tensile_db.udf.session import Session
from tensile_db.udf.source import Column
from tensile_db.udf.space import (
    ARGUMENTS,
    MOST_POINTS,
    Space,
    candidates,
    check_space,
    extremes,
    grid_size,
    trial_request,
)

METHODS = ("grid", "random", "tpe", "halving", "hyperband")
_METRICS_OF: Mapping[str, tuple[str, ...]] = {
    "classification": (
        "loss",
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        "precision",
        "recall",
        "f1",
        "roc_auc",
    ),
    "regression": ("loss", "mse", "rmse", "mae", "r2"),
}
METRICS = tuple(dict.fromkeys(chain(*_METRICS_OF.values())))

#: Where none are named; a grid tries all of its points.
_TRIALS = 10
_MAX_PARALLEL = 2
_MOST_PARALLEL = 1000

Arguments = dict[str, Any]
#: Architecture -> tensile.architectures.kind.
Kinds = Mapping[str, str]


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
    initial = find_initial_model(session, arguments)
    if initial is not None:
        # The space has not been looked at yet: it may be anything.
        varying = list(space) if isinstance(space, dict) else []
        _refuse_to_vary(varying, initial)
        initial.require_agreement(arguments)
        arguments = initial.filled_in(arguments, varying)
    base = _base(arguments)
    kinds = _kinds(session, space, base)
    check_space(space, has_others=PACKAGES_KIND in kinds.values())
    _refuse_twice_given(space, arguments, base)
    _require_readers(space, base, kinds)
    _require_warm_ups_within_epochs(space, arguments, base)
    request, wants_images = _check_values(session, arguments, space, base, kinds)
    base["options"], pretrained_id = with_pretrained(
        session, request["architecture"], base["options"], varying=space
    )
    trials = _trials(method, arguments["trials"], space)
    options = dict.fromkeys(space) | base["options"]
    reading = find_reading(session, arguments, wants_images=wants_images, options=options, initial=initial)
    check_class_weights(base["options"], reading.target)
    _require_metric(metric, reading.target, base["options"].get("task"))
    own = {
        # A trial's may differ, and the optimizer's default is the trial's own.
        "architecture": base["architecture"],
        "model": request["model"],
        "optimizer": base["optimizer"],
        "learning_rate": None if "learning_rate" in space else base["learning_rate"],
        # Where trials have seeds of their own, this one decides which.
        "seed": base["seed"] or DEFAULTS["seed"],
        "options": base["options"],
    }
    search = {
        "space": space,
        "method": method,
        "trials": trials,
        "max_parallel": max_parallel,
        "metric": metric,
    }
    request |= reading_request(session, reading) | own | {"kind": "search", "search": search}
    return request | {
        "initial_model_id": None if initial is None else initial.id,
        "pretrained_id": pretrained_id,
    }


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


def _refuse_to_vary(varying: list[str], initial: InitialModel) -> None:
    """Refuse to vary what the weights decide that trials start from."""
    for name in ("architecture", "hidden_units"):
        if name in varying:
            raise InvalidRequest(
                f'"{name}" is that of the model "{initial.name}" that the trials start from, and cannot vary',
                hint='Leave it out of space, or "start_from" out of options.',
            )


def _base(arguments: Arguments) -> dict[str, Any]:
    """Return what the trials have in common, with tensile_train's defaults where there is one."""
    options = {} if arguments["options"] is None else arguments["options"]
    if not isinstance(options, dict):
        raise InvalidRequest("options is no JSON object", hint="Write it as '{\"image_size\": 64}'.")
    return {
        "architecture": arguments["architecture"],
        "epochs": arguments["epochs"],
        "batch_size": arguments["batch_size"],
        "optimizer": arguments["optimizer"] or DEFAULTS["optimizer"],
        "learning_rate": arguments["learning_rate"],
        "seed": arguments["seed"],
        "options": {name: value for name, value in options.items() if value is not None},
    }


def _check_values(
    session: Session, arguments: Arguments, space: Space, base: dict[str, Any], kinds: Kinds
) -> tuple[dict[str, Any], bool]:
    """Check each value as tensile_train would; return a request, and whether any trial wants images.

    Each is checked in a trial of the first values of all others that read it.  Raises as tensile_train does.
    """
    first = {name: extremes(spec)[0] for name, spec in space.items()}
    named = {"model": arguments["model"] or first.get("architecture") or base["architecture"]}

    def checked(params: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        trial = trial_request(base, params, {}, kinds)
        return network_request(session, arguments | named | trial)

    request, wants_images = checked(first)
    for name, spec in space.items():
        others = first | {of: found[0] for of, found in _readers(space, base, kinds, name).items()}
        for value in extremes(spec):
            _, takes_images = checked(others | {name: value})
            wants_images = wants_images or takes_images
    return request, wants_images


def _require_warm_ups_within_epochs(space: Space, arguments: Arguments, base: dict[str, Any]) -> None:
    """Refuse trials that might warm up for longer than they train; what is no number others refuse."""
    given = {
        "warmup_epochs": base["options"].get("warmup_epochs", 0),
        "epochs": arguments["epochs"] or DEFAULTS["epochs"],
    }
    warm_ups, epochs = (
        [value for value in extremes(space.get(name, {"choices": [each]})) if isinstance(value, int | float)]
        for name, each in given.items()
    )
    if warm_ups and epochs and max(warm_ups) > min(epochs):
        raise InvalidRequest(
            f"a trial might warm up for {format_json(max(warm_ups))} epochs, and have {min(epochs)}",
            hint='Let no "warmup_epochs" be more than the fewest epochs.',
        )


def _require_readers(space: Space, base: dict[str, Any], kinds: Kinds) -> None:
    """Refuse an option that no trial's optimizer or architecture reads; those that do not, go without it."""
    for optimizer in candidates(space, base, "optimizer"):
        if optimizer not in OPTIMIZERS:
            raise UnknownName("optimizer", optimizer, OPTIMIZERS)
    for name in (*space, *base["options"]):
        readers = _readers(space, base, kinds, name)
        if not readers["optimizer"]:
            raise InvalidRequest(
                f'no optimizer of this search has an option "{name}"',
                hint="Leave it out, or let the optimizer be one that has:"
                f" {', '.join(optimizers_that_read(name))}.",
            )
        if not readers["architecture"]:
            if name not in OPTIONS:
                raise unknown_option(name, next(iter(kinds.values())))
            raise InvalidRequest(
                f'no architecture of this search has an option "{name}"', hint="Leave it out."
            )


def _readers(space: Space, base: dict[str, Any], kinds: Kinds, name: str) -> dict[str, list[Any]]:
    """Return the optimizers and architectures of the search to which an option means something."""
    reads: dict[str, Callable[[Any], bool]] = {
        "optimizer": lambda optimizer: optimizer_reads(optimizer, name),
        "architecture": lambda architecture: kind_reads(kinds.get(architecture), name),
    }
    return {
        of: [each for each in candidates(space, base, of) if is_reader(each)]
        for of, is_reader in reads.items()
    }


def _refuse_twice_given(space: Space, arguments: Arguments, base: dict[str, Any]) -> None:
    """Refuse what varies and is given besides.

    A value that equals the default passes: SQL does not tell whether it was given.
    """
    for name in space:
        if name in base["options"]:
            raise InvalidRequest(
                f'"{name}" is one of the options, and varies in space', hint="Leave it out of one of them."
            )
        if name in ARGUMENTS and arguments[name] not in (None, DEFAULTS.get(name)):
            raise InvalidRequest(
                f'"{name}" is given as an argument, and varies in space',
                hint="Leave it out of space, or "
                + ("give NULL for it." if name == "architecture" else "do not give it as an argument."),
            )


def _require_metric(metric: str, target: Column | None, task: str | None) -> None:
    """Refuse a metric that trials of the target will not have."""
    assert target is not None
    learns = task_of(target, task)
    if metric in _METRICS_OF[learns]:
        return
    what = "classes" if learns == "classification" else "a number"
    raise InvalidRequest(
        f'trials that predict {what} have no metric "{metric}"',
        hint=f"Name one of {', '.join(_METRICS_OF[learns])}.",
    )


def _trials(method: str, asked: int | None, space: Space) -> int:
    trials = _count("trials", asked, _TRIALS, MOST_POINTS)
    if method != "grid":
        return trials
    points = grid_size(space)
    return points if asked is None else min(asked, points)


def _kinds(session: Session, space: Any, base: dict[str, Any]) -> dict[str, str]:
    """Return the kind of each architecture that the search names; the space may be anything yet."""
    names = [base["architecture"]]
    if isinstance(space, dict) and isinstance(space.get("architecture"), dict):
        choices = space["architecture"].get("choices")
        names = choices if isinstance(choices, list) else names
    known = session.rows(
        "SELECT name, kind FROM tensile.architectures WHERE name = ANY ({names})",
        names=("text[]", [name for name in names if isinstance(name, str)]),
    )
    return {row["name"]: row["kind"] for row in known}


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
