"""Cuts the trace of a step in two: what a frozen backbone does, and the head's part.

A frozen backbone makes the same of a row in every epoch.  So that can be made once, and loaded with each
batch from then on.  The backbone's are the calls that depend on the features, and on nothing that changes
from iteration to iteration: no trained parameter, no target, no random number.  A trace does not show whether
what is made of a row depends on the rows beside it; who keeps it tries that out (worker/jobs/extracting.py).

Source: ours.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch.fx.node import map_arg

from tensile_db.capture.nodes import TracedCall, traced_calls, value_of
from tensile_db.capture.storages import StorageKey, flattened, storage_key
from tensile_db.capture.trace import Trace

#: Names of the inputs that the backbone alone takes.
OF_FEATURES = ("features", "normalisation")


class _DependsOn(IntEnum):
    """What a value depends on beyond constants and frozen parameters."""

    NOTHING = 0
    FEATURES = 1
    #: What changes from iteration to iteration, whatever else.
    CHANGES = 2


@dataclass(frozen=True, kw_only=True)
class TracePart:
    """One of the two: nodes of the trace by name, and names of the persistent tensors that they use."""

    calls: frozenset[str]
    state: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A trace in two parts.  Calls that depend on nothing, and that both parts need, are in both."""

    backbone: TracePart
    head: TracePart
    #: What the head reads of what the backbone makes: windows onto a storage each, as fake tensors
    #: [rows, ...], in which each row has its part.
    features: tuple[torch.Tensor, ...]

    def outputs(self) -> dict[str, torch.Tensor]:
        """Return what the backbone hands over to the head, by name, in order."""
        return {f"backbone_features/{place}": value for place, value in enumerate(self.features)}

    @staticmethod
    def backbone_inputs(whole: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return those inputs of the whole step that the backbone takes, in order."""
        return {name: value for name, value in whole.items() if name in OF_FEATURES}

    def head_inputs(self, whole: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the head's inputs by name, in the order of its batch: the features, then what is left."""
        return self.outputs() | {name: value for name, value in whole.items() if name not in OF_FEATURES}


def find_partition(trace: Trace, input_names: Sequence[str], *, trained: Collection[str]) -> Partition | None:
    """Return a trace in two parts; None where the backbone has nothing to hand over of each row.

    input_names: of the trace's inputs, in order; "features" is [rows, ...].  trained: qualified names of the
    parameters that are trained.
    """
    calls = traced_calls(trace)
    inputs = {name: value_of(trace, node) for name, node in zip(input_names, trace.inputs, strict=True)}
    state = {name: storage_key(value_of(trace, node)) for name, node in trace.state.items()}
    found = _classify(trace, calls, inputs, state, trained)
    if found is None or not found.read or found.read.keys() & {storage_key(each) for each in inputs.values()}:
        return None
    rows = len(inputs["features"])
    windows = [_window(values, calls, key, rows) for key, values in found.read.items()]
    features = tuple(window for window in windows if window is not None)
    if len(features) < len(windows):
        return None
    backbone = _with_constants(calls, found.of_call, _DependsOn.FEATURES, loaded=frozenset())
    head = _with_constants(calls, found.of_call, _DependsOn.CHANGES, loaded=found.read.keys())
    changing = frozenset(name for name in state if not _is_frozen(name, trained))
    return Partition(
        backbone=TracePart(calls=backbone, state=_state_of(calls, backbone, state)),
        head=TracePart(calls=head, state=_state_of(calls, head, state) | changing),
        features=features,
    )


@dataclass(frozen=True, kw_only=True)
class _Classified:
    of_call: Mapping[str, _DependsOn]
    #: Windows through which calls that depend on changes read what depends on the features, by storage.
    read: Mapping[StorageKey, Sequence[torch.Tensor]]


def _classify(
    trace: Trace,
    calls: Sequence[TracedCall],
    inputs: Mapping[str, torch.Tensor],
    state: Mapping[str, StorageKey],
    trained: Collection[str],
) -> _Classified | None:
    """Return what calls depend on; None where the head reads what the backbone has yet to overwrite."""
    depends = {
        key: _DependsOn.NOTHING if _is_frozen(name, trained) else _DependsOn.CHANGES
        for name, key in state.items()
    }
    for name, value in inputs.items():
        depends[storage_key(value)] = _DependsOn.FEATURES if name in OF_FEATURES else _DependsOn.CHANGES
    persistent = frozenset(state.values())
    of_call: dict[str, _DependsOn] = {}
    read: dict[StorageKey, list[torch.Tensor]] = {}
    read_by_head: set[StorageKey] = set()
    for call in calls:
        touched = call.reads | call.updates
        on = max((depends.get(key, _DependsOn.NOTHING) for key in touched), default=_DependsOn.NOTHING)
        if call.random or call.updates & persistent or call.node.name in trace.backward:
            on = _DependsOn.CHANGES
        if on is _DependsOn.CHANGES:
            read_by_head |= touched
            for value in _windows(trace, call):
                key = storage_key(value)
                # What the head has written a part of, it may read the rest of.
                if key in read or depends.get(key) is _DependsOn.FEATURES:
                    read.setdefault(key, []).append(value)
        elif call.updates & read_by_head:
            return None
        of_call[call.node.name] = on
        depends |= dict.fromkeys(call.makes | call.updates, on)
    return _Classified(of_call=of_call, read=read)


def _is_frozen(name: str, trained: Collection[str]) -> bool:
    """Tell of a persistent tensor whether no iteration changes it; a buffer changes where a call says so."""
    kind, own = name.split("/", 1)
    return kind == "buffer" or (kind == "parameter" and own not in trained)


def _windows(trace: Trace, call: TracedCall) -> Iterator[torch.Tensor]:
    """Yield the windows through which a call reads and writes what is there."""
    values, named = map_arg((call.args, dict(call.kwargs)), lambda used: value_of(trace, used))
    for item in flattened([values, list(named.values())]):
        if isinstance(item, torch.Tensor):
            yield item


def _window(
    values: Sequence[torch.Tensor], calls: Iterable[TracedCall], key: StorageKey, rows: int
) -> torch.Tensor | None:
    """Return the window of a storage that is handed over: the one that it is read through, or all of it.

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
    calls: Sequence[TracedCall],
    of_call: Mapping[str, _DependsOn],
    wanted: _DependsOn,
    *,
    loaded: Collection[StorageKey],
) -> frozenset[str]:
    """Return the names of the calls that depend on what is wanted, and of constant ones that they need.

    loaded: what need not be made.
    """
    names: set[str] = set()
    needed: set[StorageKey] = set()
    for call in reversed(calls):
        on = of_call[call.node.name]
        is_needed = on is _DependsOn.NOTHING and (call.makes | call.updates) & needed
        if on is wanted or is_needed:
            names.add(call.node.name)
            needed |= call.reads.difference(loaded)
    return frozenset(names)


def _state_of(
    calls: Iterable[TracedCall], names: Collection[str], state: Mapping[str, StorageKey]
) -> frozenset[str]:
    """Return the names of the persistent tensors that calls read or write."""
    used: set[StorageKey] = set()
    for call in calls:
        if call.node.name in names:
            used |= call.reads | call.updates
    return frozenset(name for name, key in state.items() if key in used)
