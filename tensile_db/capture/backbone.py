"""Which calls of a step are a frozen backbone's own, and what the rest takes of them.

What a frozen backbone makes of a row is the same in every epoch, where the row is: so it can be made once,
and loaded with each batch from then on.  These calls depend on the features, but on nothing that changes: no
trained parameter, no target, no random number.  Whether a row's are also the same beside other rows, nobody
can tell from a trace; who keeps them has to look (worker/jobs/backbone.py).

Source: ours.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch.fx.node import map_arg

from tensile_db.capture.nodes import StorageKey, TracedCall, flattened, storage_key, traced_calls, value_of
from tensile_db.capture.trace import Trace


class _Depends(Enum):
    """What a storage's value depends on beyond constants and frozen parameters."""

    NOTHING = auto()
    FEATURES = auto()
    #: What changes from iteration to iteration.
    MORE = auto()


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A trace in two: what a frozen backbone does, and the rest."""

    #: Names of nodes.  Calls that depend on nothing, and that both need, are in both.
    backbone: frozenset[str]
    rest: frozenset[str]
    #: What the rest reads of what the backbone makes of the features: windows onto storages of their own, as
    #: fake tensors [rows, ...], in which each row has its part.
    taken: tuple[torch.Tensor, ...]
    #: Names of persistent tensors that each reads, or writes.
    backbone_state: frozenset[str]
    rest_state: frozenset[str]

    @staticmethod
    def inputs(whole: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return those inputs of the whole step that the backbone takes, by name."""
        return {name: value for name, value in whole.items() if name in OF_FEATURES}

    @property
    def head(self) -> "HeadAlone":
        """What is lowered where the backbone's part has been done."""
        return HeadAlone(calls=self.rest, state=self.rest_state, taken=self.taken)


@dataclass(frozen=True, kw_only=True)
class HeadAlone:
    """What of a trace is lowered without its backbone: nodes, persistent tensors, and what is loaded."""

    calls: frozenset[str]
    state: frozenset[str]
    taken: tuple[torch.Tensor, ...]

    def inputs(self, whole: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what is loaded, by name, instead of the inputs of the whole step."""
        return taken_by_name(self.taken) | {
            name: value for name, value in whole.items() if name not in OF_FEATURES
        }


#: Names of the inputs that the backbone alone takes.
OF_FEATURES = ("features", "normalisation")


def taken_by_name(taken: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what the head takes of the backbone by the names that it has as their outputs and inputs."""
    return {f"backbone_features/{place}": value for place, value in enumerate(taken)}


def find_backbone(trace: Trace, input_names: Sequence[str], *, trained: Collection[str]) -> Backbone | None:
    """Return the backbone of a trace; None where nothing can be made once for all epochs.

    input_names: of the trace's inputs, "features" being [rows, ...].  trained: qualified names of the
    parameters that are.
    """
    calls = traced_calls(trace)
    keys = {name: storage_key(value_of(trace, node)) for name, node in trace.state.items()}
    changing = {key for name, key in keys.items() if not _is_frozen(name, trained)}
    depends = dict.fromkeys(keys.values(), _Depends.NOTHING) | dict.fromkeys(changing, _Depends.MORE)
    inputs = {name: value_of(trace, node) for name, node in zip(input_names, trace.inputs, strict=True)}
    for name, value in inputs.items():
        depends[storage_key(value)] = _Depends.FEATURES if name in OF_FEATURES else _Depends.MORE
    persistent = frozenset(keys.values())
    taken: dict[StorageKey, list[torch.Tensor]] = {}
    of_call: dict[str, _Depends] = {}
    for call in calls:
        touched = call.reads | call.updates
        found = max(
            (depends.get(key, _Depends.NOTHING) for key in touched),
            key=lambda each: each.value,
            default=_Depends.NOTHING,
        )
        if call.random or call.updates & persistent or call.node.name in trace.backward:
            found = _Depends.MORE
        of_call[call.node.name] = found
        if found is _Depends.MORE:
            for value in _tensors(trace, call):
                if depends.get(storage_key(value)) is _Depends.FEATURES:
                    taken.setdefault(storage_key(value), []).append(value)
        elif call.updates & taken.keys():
            # The rest has read what was there before.
            return None
        depends |= dict.fromkeys(call.makes | call.updates, found)
    if not taken or taken.keys() & {storage_key(value) for value in inputs.values()}:
        return None
    rows = len(inputs["features"])
    windows = [_window(values, calls, key, rows) for key, values in taken.items()]
    if any(window is None for window in windows):
        return None
    own = _with_constants(calls, of_call, _Depends.FEATURES)
    rest = _with_constants(calls, of_call, _Depends.MORE)
    return Backbone(
        backbone=own,
        rest=rest,
        taken=tuple(window for window in windows if window is not None),
        backbone_state=_state_of(calls, own, keys),
        rest_state=_state_of(calls, rest, keys)
        | {name for name in trace.state if not _is_frozen(name, trained)},
    )


def _is_frozen(name: str, trained: Collection[str]) -> bool:
    kind, own = name.split("/", 1)
    return kind == "buffer" or (kind == "parameter" and own not in trained)


def _tensors(trace: Trace, call: TracedCall) -> Iterator[torch.Tensor]:
    """Yield the windows through which a call reads and writes what is there."""
    values, named = map_arg((call.args, dict(call.kwargs)), lambda used: value_of(trace, used))
    for item in flattened([values, list(named.values())]):
        if isinstance(item, torch.Tensor):
            yield item


def _window(
    values: Sequence[torch.Tensor], calls: Iterable[TracedCall], key: StorageKey, rows: int
) -> torch.Tensor | None:
    """Return the window of a storage that is to be kept: the one that it is read through, or else all of it.

    None where it has no part for each row.
    """
    shapes = {(value.dtype, value.shape, value.stride(), value.storage_offset()) for value in values}
    if len(shapes) == 1 and _has_rows(values[0], rows):
        return values[0]
    made = next(
        result
        for call in calls
        if key in call.makes
        for result in call.results
        if isinstance(result, torch.Tensor) and storage_key(result) == key
    )
    is_all = made.numel() * made.dtype.itemsize == made.untyped_storage().nbytes()
    return made if is_all and _has_rows(made, rows) else None


def _has_rows(value: torch.Tensor, rows: int) -> bool:
    """Whether a window's first dimension cuts its storage into as many equal parts, one for each row."""
    if value.dim() == 0 or value.shape[0] != rows or not value.numel():
        return False
    if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
        return False
    step_nbytes = value.stride()[0] * value.dtype.itemsize
    return rows == 1 or step_nbytes * rows == value.untyped_storage().nbytes()


def _with_constants(
    calls: Sequence[TracedCall], of_call: Mapping[str, _Depends], wanted: _Depends
) -> frozenset[str]:
    """Return the names of the calls that depend on what is wanted, and of constant ones that they need."""
    names: set[str] = set()
    needed: set[StorageKey] = set()
    for call in reversed(calls):
        name = call.node.name
        is_needed = of_call[name] is _Depends.NOTHING and (call.makes | call.updates) & needed
        if of_call[name] is wanted or is_needed:
            names.add(name)
            needed |= call.reads
    return frozenset(names)


def _state_of(
    calls: Iterable[TracedCall], names: Collection[str], keys: Mapping[str, StorageKey]
) -> frozenset[str]:
    """Return the names of the persistent tensors that calls read or write."""
    used: set[StorageKey] = set()
    for call in calls:
        if call.node.name in names:
            used |= call.reads | call.updates
    return frozenset(name for name, key in keys.items() if key in used)
