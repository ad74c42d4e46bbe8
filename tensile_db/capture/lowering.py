"""Turns a trace into the tensors and calls of a step: views vanish, storages stay."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from tensile_db.capture import operators
from tensile_db.capture.accumulation import sum_in_place
from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.large_gradients import apart
from tensile_db.capture.nodes import StorageKey, TracedCall, storage_key, traced_calls, value_of
from tensile_db.capture.state import role_of
from tensile_db.capture.step import View
from tensile_db.capture.trace import Trace
from tensile_db.graph import Phase, Role, TensorId

#: (parameter's qualified name, its gradient, whether it has a storage of its own)
GradientMade = Callable[[str, View, bool], None]


class Lowering:
    """Lowers one trace into a builder, in this order: state, inputs, calls."""

    def __init__(self, trace: Trace, builder: StepBuilder) -> None:
        self._trace = trace
        self._builder = builder
        self._calls, self._replaced = sum_in_place(trace, traced_calls(trace))
        self._tensors: dict[StorageKey, TensorId] = {}
        gradients = {self._key(value_of(trace, node)) for node in trace.gradients.values()}
        self._roles = {
            **dict.fromkeys(gradients, Role.GRADIENT),
            self._key(value_of(trace, trace.result)): Role.OUTPUT,
        }

    def add_state(self) -> None:
        """Add parameters and buffers, and the loss scale where there is one."""
        for name, node in self._trace.state.items():
            self._add_storage(value_of(self._trace, node), role_of(name), name)
            self._builder.add_state(name, self.view_of(node))

    def add_inputs(self, names: Sequence[str]) -> None:
        """Add the batch and the op that loads it."""
        for name, node in zip(names, self._trace.inputs, strict=True):
            self._add_storage(value_of(self._trace, node), Role.INPUT, name)
        self._builder.load_batch([self.view_of(node) for node in self._trace.inputs])

    def add_calls(self, gradient_made: GradientMade | None = None) -> None:
        """Add the calls of forward and backward.

        gradient_made: told of each gradient behind the last call that touches its storage.
        """
        calls = list(apart(self._trace, self._calls))
        complete = {} if gradient_made is None else self._complete_gradients(calls)
        for index, call in enumerate(calls):
            outputs = self._add_results(call)
            args, kwargs = map_arg((call.args, dict(call.kwargs)), self._argument)
            values, named = map_arg((call.args, dict(call.kwargs)), lambda node: value_of(self._trace, node))
            self._builder.call(
                call.function,
                args,
                kwargs,
                phase=Phase.BACKWARD if call.node.name in self._trace.backward else Phase.FORWARD,
                outputs=outputs,
                flops=operators.flops(call.function, values, named, value_of(self._trace, call.node)),
            )
            for name, is_alone in complete.get(index, ()):
                assert gradient_made is not None
                gradient_made(name, self.view_of(self._trace.gradients[name]), is_alone)

    def _complete_gradients(self, calls: Sequence[TracedCall]) -> Mapping[int, list[tuple[str, bool]]]:
        """Return by call the gradients that none touches later, and whether each has a storage of its own."""
        last: dict[StorageKey, int] = {}
        made: set[StorageKey] = set()
        for index, call in enumerate(calls):
            made |= call.makes
            for key in call.reads | call.updates | call.makes:
                last[self._replaced.get(key, key)] = index
        keys = {name: self._key(value_of(self._trace, node)) for name, node in self._trace.gradients.items()}
        gradients_of = Counter(keys.values())
        complete: dict[int, list[tuple[str, bool]]] = defaultdict(list)
        for name, key in keys.items():
            is_alone = key in made and gradients_of[key] == 1 and self._roles[key] is Role.GRADIENT
            complete[last.get(key, len(calls) - 1)].append((name, is_alone))
        return complete

    def view_of(self, node: fx.Node) -> View:
        """Return the window that a node's result is."""
        return self._view(value_of(self._trace, node))

    def _argument(self, node: fx.Node) -> Any:
        """Return what a call gets in place of a node: a View, or the number that the node gave."""
        value = value_of(self._trace, node)
        if isinstance(value, torch.Tensor):
            return self._view(value)
        if isinstance(value, list | tuple):
            return type(value)(self._view(item) for item in value)
        return value

    def _add_results(self, call: TracedCall) -> tuple[View | None, ...]:
        made = set(call.makes)
        outputs: list[View | None] = []
        for index, value in enumerate(call.results):
            if isinstance(value, torch.Tensor) and storage_key(value) in made:
                made.remove(storage_key(value))
                name = call.node.name if len(call.results) == 1 else f"{call.node.name}.{index}"
                self._add_storage(value, self._roles.get(self._key(value), Role.ACTIVATION), name)
                outputs.append(self._view(value))
            else:
                outputs.append(None)
        return tuple(outputs)

    def _add_storage(self, value: torch.Tensor, role: Role, name: str) -> None:
        key = self._key(value)
        assert key not in self._tensors, f"{name} shares its storage with another tensor"
        self._tensors[key] = self._builder.add_tensor(
            nbytes=value.untyped_storage().nbytes(),
            dtype=value.dtype,
            shape=tuple(value.shape),
            role=role,
            name=name,
        )

    def _view(self, value: torch.Tensor) -> View:
        return View(
            tensor=self._tensors[self._key(value)],
            dtype=value.dtype,
            size=tuple(value.shape),
            stride=tuple(value.stride()),
            offset=int(value.storage_offset()),
        )

    def _key(self, value: torch.Tensor) -> StorageKey:
        key = storage_key(value)
        return self._replaced.get(key, key)


def gradient_views(lowering: Lowering, trace: Trace) -> Mapping[str, View]:
    """Return the trained parameters' gradients by qualified name."""
    return {name: lowering.view_of(node) for name, node in trace.gradients.items()}
