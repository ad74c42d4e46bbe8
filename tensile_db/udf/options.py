"""The keys that `options` may have, and what each may hold.

Runs inside PostgreSQL.  A new option is a line in OPTIONS; the worker reads it from tensile.jobs.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from tensile_db.errors import InvalidRequest, UnknownName, format_json
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


def _truth(value: Any) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _true_or_name(value: Any) -> str:
    return "" if not _truth(value) or not _text(value) else "true or false, or a text"


def _either(*names: str) -> Callable[[Any], str]:
    *first, last = (f'"{name}"' for name in names)
    return lambda value: "" if value in names else f"either {', '.join(first)} or {last}"


def _class_weights(value: Any) -> str:
    check = _number(1e-9, 1e9)
    fits = value == "balanced" or (isinstance(value, dict) and value and not any(map(check, value.values())))
    return "" if fits else f'"balanced", or an object that gives classes weights, each {check(None)}'


def _augmentation(value: Any) -> str:
    if isinstance(value, dict) and value and all(name in _AUGMENTATIONS for name in value):
        wrong = [name for name, amount in value.items() if _AUGMENTATIONS[name](amount)]
        if not wrong:
            return ""
        return f'an object whose "{wrong[0]}" is {_AUGMENTATIONS[wrong[0]](None)}'
    return f"an object with some of {', '.join(_AUGMENTATIONS)}"


_SIZE = _whole(1, 8192)
_SHARE = _number(0, 1, open_high=True)

#: Ways to augment images, and what each may be, as in OPTIONS.
_AUGMENTATIONS: Mapping[str, Callable[[Any], str]] = {
    "horizontal_flip": _truth,
    "random_crop_padding": _whole(0, 1024),
    "random_resized_crop_area": _number(0, 1, open_low=True),
}

#: Name -> what a wrong value should have been, or "".
OPTIONS: Mapping[str, Callable[[Any], str]] = {
    "augmentation": _augmentation,
    "betas": _list(_SHARE, 2, 2),
    "checkpoint_iterations": _whole(1, 2**31 - 1),
    "checkpoint_seconds": _number(0, 1e9, open_low=True),
    "class_weights": _class_weights,
    "device": _text,
    "drop_path": _SHARE,
    "dropout": _SHARE,
    "eps": _number(0, 1, open_low=True),
    "freeze_backbone": _truth,
    "held_out": _text,
    "hidden_units": _list(_whole(1, 65536), 0, 32),
    "image_size": _SIZE,
    "key": _text,
    "learning_rate_schedule": _either("constant", "cosine", "linear"),
    "max_gradient_norm": _number(0, 1e9, open_low=True),
    "max_swapping_rate": _number(0, 1),
    "memory_format": _either("contiguous", "channels_last"),
    "momentum": _SHARE,
    "null_targets": _either("refuse", "skip"),
    "nulls": _either("refuse", "impute"),
    "patience": _whole(1, 2**31 - 1),
    "precision": wrong_precision,
    "pretrained": _true_or_name,
    "raw_shape": _list(_SIZE, 2, 3),
    "start_from": _text,
    "start_from_version": _whole(1, 2**31 - 1),
    "task": _either("classification", "regression"),
    "warmup_epochs": _number(0, 1e9),
    "weight_decay": _number(0, 1e3),
}

#: Of the above, those that a network is built with.
NETWORK_OPTIONS = frozenset({"drop_path", "dropout", "hidden_units"})

#: Options that mean nothing where features are columns of numbers, texts or times.
_OF_IMAGES = ("augmentation", "image_size", "raw_shape")

#: Options that only some optimizers read, the likeliest first.
_READ_BY_OPTIMIZERS = {
    "betas": ("adam", "adamw"),
    "eps": ("adam", "adamw"),
    "momentum": ("momentum", "sgd"),
}

#: Options that only some kinds of architectures read (tensile.architectures.kind); packages' may read any.
_READ_BY_KINDS = {
    "drop_path": ("alias", "timm"),
    "freeze_backbone": ("alias", "mlp", "timm"),
    "hidden_units": ("mlp",),
    "memory_format": ("alias", "timm"),
    "pretrained": ("alias", "timm"),
}
PACKAGES_KIND = "plugin"
#: But for these: of a package's network nobody knows which layers give its outputs.
_OF_NO_PACKAGE = ("freeze_backbone", "pretrained")

#: What is easily taken for an option: all of tensile_train's arguments but `options`.
TRAIN_ARGUMENTS = frozenset(
    {
        "architecture",
        "batch_size",
        "epochs",
        "features",
        "learning_rate",
        "memory_limit",
        "model",
        "optimizer",
        "policy",
        "priority",
        "seed",
        "source",
        "target",
        "validation",
    }
)


def check_options(options: Any, *, optimizer: str, architecture: str, kind: str) -> dict[str, Any]:
    """Return the options, nulls left out.

    kind: the architecture's (tensile.architectures.kind); of a package's only the package knows the options
    that it takes besides.
    Raises UnknownName, InvalidRequest.
    """
    if not isinstance(options, dict):
        raise InvalidRequest("options is no JSON object", hint="Write it as '{\"image_size\": 64}'.")
    given = {name: value for name, value in options.items() if value is not None}
    for name in options:
        if name not in OPTIONS and kind != PACKAGES_KIND:
            raise unknown_option(name, kind)
    for name, value in given.items():
        if name in OPTIONS:
            check_option(name, value)
        if not optimizer_reads(optimizer, name):
            raise InvalidRequest(
                f'the optimizer "{optimizer}" has no option "{name}"',
                hint=f"Leave it out, or use optimizer => '{optimizers_that_read(name)[0]}'.",
            )
        if not kind_reads(kind, name):
            kinds = _READ_BY_KINDS[name]
            reader = " and ".join(
                [*(["timm's networks"] if "timm" in kinds else []), *(['"mlp"'] if "mlp" in kinds else [])]
            )
            raise InvalidRequest(
                f'the architecture "{architecture}" has no option "{name}"',
                hint=f"Leave it out: it is for {reader}.",
            )
    return given


def check_option(name: str, value: Any) -> None:
    """Refuse a value that an option cannot have.  Raises InvalidRequest."""
    wanted = OPTIONS[name](value)
    if wanted:
        raise InvalidRequest(f'option "{name}" cannot be {format_json(value)}', hint=f"It is {wanted}.")


def check_warm_up(options: Mapping[str, Any], epochs: int) -> None:
    """Refuse a warm-up, a number, of more epochs than a training has.  Raises InvalidRequest."""
    warm_up = options.get("warmup_epochs", 0)
    if warm_up > epochs:
        raise InvalidRequest(
            f"the learning rate warms up for {format_json(warm_up)} epochs, and epochs is {epochs}",
            hint='Let "warmup_epochs" be fewer, or epochs be more.',
        )


def wanted_of(name: str) -> str:
    """Return what values an option takes, to be said after "It is"."""
    # No option takes a null.
    return OPTIONS[name](None)


def check_options_of_features(names: Collection[str], families: Iterable[str], *, are_images: bool) -> None:
    """Refuse options for images where features are none, and for columns where they are images or arrays.

    names: of the options that are given; families: of the features' columns (source.Family);
    are_images: whether arrays are images whatever the options say.
    Raises InvalidRequest.
    """
    found = set(families)
    if found == {"array"} and not are_images and "raw_shape" not in names:
        for name in sorted({"augmentation", "image_size"} & set(names)):
            raise InvalidRequest(
                f'the option "{name}" is for images, and each element of the arrays is a feature',
                hint='Leave it out, or say what images they are by the option "raw_shape".',
            )
    if not found <= {"number", "text", "time"}:
        if "nulls" in names:
            raise InvalidRequest(
                'the option "nulls" is for columns of numbers, texts and times, and the features are'
                f" {'images' if 'bytes' in found or are_images else 'arrays'}",
                hint="Leave it out.",
            )
        return
    for name in names:
        if name in _OF_IMAGES:
            raise InvalidRequest(
                f'the option "{name}" is for images, and the features are columns of numbers, texts or times',
                hint="Leave it out, or name a column of images: features => '{...}'.",
            )


def optimizer_reads(optimizer: str, name: str) -> bool:
    """Whether an option means anything to a job with this optimizer."""
    return optimizer in _READ_BY_OPTIMIZERS.get(name, (optimizer,))


def optimizers_that_read(name: str) -> tuple[str, ...]:
    """Return the optimizers to which an option means something that it does not to others."""
    return _READ_BY_OPTIMIZERS[name]


def kind_reads(kind: str | None, name: str) -> bool:
    """Whether an option or argument means anything to a kind of architectures; None: nobody knows it."""
    if kind is None or (kind == PACKAGES_KIND and name not in _OF_NO_PACKAGE):
        return True
    return name in TRAIN_ARGUMENTS or (name in OPTIONS and kind in _READ_BY_KINDS.get(name, (kind,)))


def unknown_option(name: str, kind: str) -> InvalidRequest:
    """Return the error that says which options a kind of architectures has."""
    if name in TRAIN_ARGUMENTS:
        return InvalidRequest(
            f'"{name}" is an argument and no option', hint=f"Give it outside of options: {name} => ..."
        )
    return UnknownName("option", name, [known for known in OPTIONS if kind_reads(kind, known)])
