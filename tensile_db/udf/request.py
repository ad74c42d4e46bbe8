"""From the arguments of a call to a row of tensile.jobs, or an error that says what to change.

Runs inside PostgreSQL, as the caller.  Keys of a request are columns of tensile.jobs.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tensile_db.errors import InvalidRequest, UnknownName, format_value
from tensile_db.udf.columns import (
    columns_of_model,
    find_features,
    find_others,
    find_target,
)
from tensile_db.udf.initial_model import InitialModel, find_initial_model
from tensile_db.udf.notices import tell_of_choice, tell_of_name, tell_of_rows
from tensile_db.udf.options import check_options, check_options_of_features, check_warm_up
from tensile_db.udf.pretrained import with_pretrained
from tensile_db.udf.ranges import WHOLE_ARGUMENTS
from tensile_db.udf.session import Session
from tensile_db.udf.source import Column, Source, find_source, require_readable, require_rows

#: Optimizer -> its learning rate where none is given: torch's, and for SGD the usual one of convolutions.
OPTIMIZERS = {"sgd": 0.01, "momentum": 0.01, "adam": 0.001, "adamw": 0.001}

#: What tensile_train's arguments are where they are not given, but for those that depend on others.
DEFAULTS: Mapping[str, Any] = {
    "batch_size": 32,
    "epochs": 5,
    "optimizer": "momentum",
    "policy": "auto",
    "priority": 0,
    "seed": 0,
    "validation": 0.1,
}

_MODEL_NAME_LENGTH = 200
_GREATEST_FLOAT32 = 3.4028234e38


class Reading(NamedTuple):
    """What a job reads: a source, and which columns of it."""

    source: Source
    #: None where nothing is learned or measured.
    target: Column | None
    features: tuple[Column, ...]
    #: Read besides: what names rows, or tells which are held out.
    others: tuple[Column, ...] = ()


def training_request(session: Session, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the request of a job that trains or explains.

    arguments: as tensile_train has them; null stands for its default, source is an OID.
    Raises what errors.py has for wrong input.
    """
    initial = find_initial_model(session, arguments)
    if initial is not None:
        initial.require_agreement(arguments)
        arguments = initial.filled_in(arguments)
    request, takes_images = network_request(session, arguments)
    request["options"], pretrained_id = with_pretrained(session, request["architecture"], request["options"])
    reading = find_reading(
        session, arguments, wants_images=takes_images, options=request["options"], initial=initial
    )
    check_class_weights(request["options"], reading.target)
    assert reading.target is not None
    if initial is None and arguments["model"] is None:
        tell_of_name(session, request["model"], reading.target)
    if initial is not None and request["validation"] and "held_out" not in request["options"]:
        tell_of_rows(session, initial, reading.source)
    request |= reading_request(session, reading)
    return request | {
        "initial_model_id": None if initial is None else initial.id,
        "pretrained_id": pretrained_id,
    }


def network_request(session: Session, arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return what a training's request says of all but its rows, and whether its network takes images only.

    arguments: as tensile_train has them.
    Raises what errors.py has for wrong input.
    """
    architecture, kind = _architecture(session, arguments["architecture"])
    optimizer = _one_of("optimizer", arguments["optimizer"], OPTIMIZERS)
    options = check_options(
        {} if arguments["options"] is None else arguments["options"],
        optimizer=optimizer,
        architecture=architecture,
        kind=kind,
    )
    request: dict[str, Any] = {
        "architecture": architecture,
        "model": _model_name(arguments["model"], architecture),
        "epochs": _whole("epochs", arguments["epochs"]),
        "batch_size": _whole("batch_size", arguments["batch_size"]),
        "optimizer": optimizer,
        "learning_rate": _learning_rate(arguments["learning_rate"], OPTIMIZERS[optimizer]),
        "validation": _validation(arguments["validation"]),
        "seed": _whole("seed", arguments["seed"]),
        "priority": _whole("priority", arguments["priority"]),
        "memory_limit_nbytes": _memory_limit(arguments["memory_limit"]),
        "policy": _policy(session, arguments["policy"]),
        "options": options,
    }
    # What is not given is the default.
    if "held_out" in options and arguments["validation"] not in (None, DEFAULTS["validation"]):
        raise InvalidRequest(
            'the option "held_out" tells which rows are held out, and so does validation',
            hint="Leave one of them out.",
        )
    if "patience" in options and request["validation"] == 0:
        raise InvalidRequest(
            'with the option "patience" rows held out tell when to stop, and validation is 0',
            hint="validation => 0.1 holds out every tenth row; or leave out the option.",
        )
    check_warm_up(options, request["epochs"])
    # Only these are known to take nothing but images; a plugin's may take anything.
    return request, kind in {"alias", "timm"}


def find_reading(
    session: Session,
    arguments: dict[str, Any],
    *,
    wants_images: bool,
    options: Mapping[str, Any],
    initial: InitialModel | None,
) -> Reading:
    """Return what a training learns from.

    wants_images: arrays are images, and features that are left to what the columns hold are to be such.
    options: those that are given.
    initial: the model that it starts from, whose columns it learns from, too.
    Raises what errors.py has for wrong input.
    """
    found = find_source(session, arguments["source"])
    named, target_name = arguments["features"], arguments["target"]
    if initial is not None:
        named = initial.features_in(found, named)
        target_name = initial.target_in(found) if target_name is None else target_name
    target = find_target(found, target_name)
    if initial is not None:
        initial.require_target(target)
    others = find_others(found, options, target)
    features = find_features(found, named, (target, *others), wants_images=wants_images)
    are_images = wants_images or (initial is not None and initial.takes_images)
    check_options_of_features(options, (column.family for column in features), are_images=are_images)
    if named is None:
        tell_of_choice(session, found, features, (target, *others))
    return Reading(source=found, target=target, features=features, others=others)


def task_of(target: Column, task: str | None) -> str:
    """Return what is learned of a target: "classification" or "regression"; task: the option, where given."""
    return task or ("regression" if target.fractions else "classification")


def check_class_weights(options: Mapping[str, Any], target: Column | None) -> None:
    """Refuse weights of classes where a number is learned.

    options: the training's; target: what it learns.  Raises InvalidRequest.
    """
    assert target is not None
    if "class_weights" in options and task_of(target, options.get("task")) == "regression":
        of_option = ', or the option "task"' if "task" in options else ""
        raise InvalidRequest(
            f'the option "class_weights" is for classes, and of the target "{target.name}" a number is'
            " learned",
            hint=f"Leave it out{of_option}, or name another target.",
        )


def reading_request(session: Session, reading: Reading) -> dict[str, Any]:
    """Return what a request says of what is read.  Raises Forbidden; BadData where no row can be seen."""
    found, target, features = reading.source, reading.target, reading.features
    targets = () if target is None else (target,)
    require_readable(session, found, (*features, *targets, *reading.others))
    if target is not None:
        # Of no rows there are no predictions, which is no mistake.
        require_rows(session, found, features[0])
    return {
        "source_oid": found.oid,
        "source_name": found.name,
        "target": None if target is None else target.name,
        "features": [column.name for column in features],
        "settings": session.settings_of_values(),
        "client_pid": session.value("SELECT pg_catalog.pg_backend_pid()"),
    }


def model_request(
    session: Session,
    model: dict[str, Any],
    source_oid: int,
    *,
    with_target: bool,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the request of a job that predicts or evaluates a source with a model.

    model: its row of tensile.models.  options: of the job: "key", the column that names rows.
    Raises UndefinedColumn where the source lacks a column that the model learned from, and others.
    """
    found = find_source(session, source_oid)
    learned = model["features"]["columns"]
    purposes = dict.fromkeys(learned, "feature") | ({model["target"]: "target"} if with_target else {})
    columns = columns_of_model(found, model["name"], purposes)
    features = tuple(columns[name] for name in learned)
    target = columns[model["target"]] if with_target else None
    given = {name: value for name, value in (options or {}).items() if value is not None}
    others = (found.column(given["key"], "key"),) if "key" in given else ()
    reading = Reading(source=found, target=target, features=features, others=others)
    return reading_request(session, reading) | {
        "options": given,
        "architecture": model["architecture"],
        "model": model["name"],
        "model_version": model["version"],
        "model_id": model["id"],
    }


def _architecture(session: Session, name: str | None) -> tuple[str, str]:
    """Return the name and where it comes from (tensile.architectures.kind)."""
    if name is None:
        raise InvalidRequest("the architecture is NULL", hint="Name one, e.g. 'resnet50'.")
    kind = session.value("SELECT kind FROM tensile.architectures WHERE name = {name}", name=("text", name))
    if kind is not None:
        return name, kind
    known = [row["name"] for row in session.rows("SELECT name FROM tensile.architectures")]
    if not known:
        raise InvalidRequest(
            f'unknown architecture "{name}": the list of architectures is empty',
            hint="Start a worker, or run `tensile-db install` again: both fill it.",
        )
    raise UnknownName(
        "architecture", name, known, listed_in="listed by SELECT name FROM tensile.architectures"
    )


def _one_of(kind: str, name: str | None, known: Any) -> str:
    if name is None:
        default: str = DEFAULTS[kind]
        return default
    if name not in known:
        raise UnknownName(kind, name, known)
    return name


def _policy(session: Session, name: str | None) -> str:
    known = [row["name"] for row in session.rows("SELECT name FROM tensile.policies")]
    return _one_of("policy", name, known)


def _model_name(name: str | None, default: str) -> str:
    if name is None:
        return default
    if not name.strip():
        raise InvalidRequest(
            "a model's name cannot be " + ("of spaces alone" if name else "empty"),
            hint="Leave it out for the architecture's, or choose one: model => '...'.",
        )
    if len(name) > _MODEL_NAME_LENGTH:
        raise InvalidRequest(
            f"a model's name cannot be longer than {_MODEL_NAME_LENGTH} characters, got {len(name)}",
            hint="Choose a shorter one: model => '...'.",
        )
    return name


def _whole(name: str, value: int | None) -> int:
    default: int = DEFAULTS[name]
    low, high = WHOLE_ARGUMENTS[name]
    if value is None:
        return default
    if not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be at least {low}, got {value}" if value < low else f"{name} is too large: {value}",
            hint=f"The default is {default}: leave {name} out, or give a number from {low} to {high}.",
        )
    return value


def _learning_rate(value: float | str | None, default: float) -> float:
    if value is None:
        return default
    # JSON has no infinity and no NaN: they come as texts.
    if isinstance(value, str) or not math.isfinite(value) or value <= 0:
        raise InvalidRequest(
            f"learning_rate must be above 0 and finite, got {format_value(value)}",
            hint=f"Leave it out for this optimizer's default, {default:g}.",
        )
    if value > _GREATEST_FLOAT32:
        raise InvalidRequest(
            f"learning_rate is beyond float32, got {value:g}",
            hint=f"Leave it out for this optimizer's default, {default:g}.",
        )
    return value


def _validation(value: float | str | None) -> float:
    if value is None:
        default: float = DEFAULTS["validation"]
        return default
    if isinstance(value, str) or not 0 <= value < 1:
        raise InvalidRequest(
            f"validation is a share of the rows, from 0 to below 1, got {format_value(value)}",
            hint="validation => 0.1 holds out every tenth row, 0 none.",
        )
    return value


def _memory_limit(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise InvalidRequest(
            f"memory_limit must be above 0 bytes, got {value}",
            hint="Leave it out for no limit of the job's own.",
        )
    return value
