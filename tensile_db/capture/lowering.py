"""Turns a trace into the tensors and calls of a step: views vanish, storages stay."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from tensile_db.capture import operators
from tensile_db.capture.accumulation import sum_in_place
from tensile_db.capture.backbone import TracePart
from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.gradient_rows import gradients_by_rows, parts_by_rows, row_calls
from tensile_db.capture.large_gradients import apart
from tensile_db.capture.nodes import TracedCall, traced_calls, value_of
from tensile_db.capture.parts import Part, parts_of
from tensile_db.capture.state import role_of
from tensile_db.capture.step import View
from tensile_db.capture.storages import StorageKey, storage_key
from tensile_db.capture.trace import Trace
from tensile_db.graph import Phase, Role, TensorId

aten = torch.ops.aten

#: (parameter's qualified name, its gradient, whether it has a storage of its own)
GradientMade = Callable[[str, View, bool], None]


class Lowering:
    """Lowers one trace into a builder, in this order: state, inputs, calls."""

    def __init__(
        self,
        trace: Trace,
        builder: StepBuilder,
        *,
        keeps_gradients: bool = False,
        part: TracePart | None = None,
    ) -> None:
        """keeps_gradients: whole, until all are complete.  part: what alone is lowered; None: all."""
        self._trace = trace
        self._builder = builder
        calls, self._replaced = sum_in_place(trace, traced_calls(trace))
        self._part = part
        self._calls = [call for call in apart(trace, calls) if part is None or call.node.name in part.calls]
        self._by_rows = {} if keeps_gradients else gradients_by_rows(trace, self._calls)
        #: Gradients that are made in parts, each flat, by their parameters' qualified names.
        self.gradients_in_parts: dict[str, list[View]] = {}
        self._tensors: dict[StorageKey, TensorId] = {}
        gradients = {self._key(value_of(trace, node)) for node in trace.gradients.values()}
        self._roles = {
            **dict.fromkeys(gradients, Role.GRADIENT),
            self._key(value_of(trace, trace.result)): Role.OUTPUT,
        }

    def add_state(self) -> None:
        """Add parameters and buffers, and the loss scale where there is one."""
        for name, node in self.state().items():
            self._add_storage(value_of(self._trace, node), role_of(name), name)
            self._builder.add_state(name, self.view_of(node))

    def state(self) -> dict[str, fx.Node]:
        """Return the placeholders of the persistent tensors that the step has, by name."""
        part = self._part
        return {name: node for name, node in self._trace.state.items() if part is None or name in part.state}

    def add_inputs(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Add what is loaded, as fake tensors by name, and the op that loads it."""
        for name, value in inputs.items():
            self._add_storage(value, Role.INPUT, name)
        self._builder.load_batch([self.view(value) for value in inputs.values()])

    def inputs(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the inputs of the trace by the names that they are given."""
        return {
            name: value_of(self._trace, node) for name, node in zip(names, self._trace.inputs, strict=True)
        }

    def add_calls(self, gradient_made: GradientMade | None = None) -> None:
        """Add the calls of forward and backward.

        gradient_made: told of each gradient behind the last call that touches its storage.
        """
        complete = {} if gradient_made is None else self._complete_gradients(self._calls)
        for index, call in enumerate(self._calls):
            by_rows = [self._by_rows[key] for key in call.makes if key in self._by_rows]
            if by_rows:
                (name,) = by_rows
                self._add_by_rows(call, name)
                continue
            outputs = self._add_results(call)
            args, kwargs = map_arg((call.args, dict(call.kwargs)), partial(self._argument, call))
            self._builder.call(
                call.function,
                args,
                kwargs,
                phase=self._phase(call),
                outputs=outputs,
                flops=self._flops(call),
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

    def _add_by_rows(self, call: TracedCall, name: str) -> None:
        """Add the calls that make a gradient in parts."""
        parameter = self.view_of(self._trace.state[f"parameter/{name}"])
        flops = self._flops(call)
        self.gradients_in_parts[name] = []
        for own in row_calls(call, map_arg(call.args, partial(self._argument, call)), parameter):
            if own.part is None:
                outputs = self._add_results(replace(call, results=(None, None, call.results[2])))
            else:
                like = replace(parameter, size=(own.rows, *parameter.size[1:]))
                made = self._builder.add_dense(like, role=Role.GRADIENT, name=own.part.name(call.node.name))
                self.gradients_in_parts[name].append(
                    Part(begin=0, end=own.part.end - own.part.begin).window(made)
                )
                outputs = (made,) if len(call.results) == 1 else (None, made, None)
            self._builder.call(
                call.function,
                own.args,
                call.kwargs,
                phase=Phase.BACKWARD,
                outputs=outputs,
                flops=flops * own.rows // parameter.size[0],
                unread=own.unread,
            )

    def _flops(self, call: TracedCall) -> int:
        values, named = map_arg((call.args, dict(call.kwargs)), lambda node: value_of(self._trace, node))
        return operators.flops(call.function, values, named, value_of(self._trace, call.node))

    def update_parts(self, name: str) -> tuple[Part, ...]:
        """Return the parts in which a parameter is updated, none where it is as a whole; name: qualified."""
        split = parts_by_rows if name in self._by_rows.values() else parts_of
        return split(self.view_of(self._trace.state[f"parameter/{name}"]))

    def view_of(self, node: fx.Node) -> View:
        """Return the window that a node's result is."""
        return self.view(value_of(self._trace, node))

    def _phase(self, call: TracedCall) -> Phase:
        return Phase.BACKWARD if call.node.name in self._trace.backward else Phase.FORWARD

    def _argument(self, call: TracedCall, node: fx.Node) -> Any:
        """Return what a call gets in place of a node: a View, or the number that the node gave."""
        value = value_of(self._trace, node)
        if isinstance(value, torch.Tensor):
            return self._read(call, value, node)
        if isinstance(value, list | tuple):
            return type(value)(self._read(call, item, node) for item in value)
        return value

    def _read(self, call: TracedCall, value: torch.Tensor, node: fx.Node) -> View:
        """Return the window that a call reads; of what is conjugated, or negated, when it is read: on that.

        A window does not say so.  As eager does, it is made anew for each call.
        """
        read = self.view(value)
        for is_lazy, function in (
            (value.is_conj(), aten.conj_physical.default),
            (value.is_neg(), aten.neg.default),
        ):
            if is_lazy:
                # Laid out as eager's.
                like = replace(read, stride=tuple(torch.empty_like(value).stride()))
                name = f"{call.node.name}/{node.name}"
                made = self._builder.add_dense(like, role=Role.ACTIVATION, name=name)
                self._builder.call(function, (read,), phase=self._phase(call), outputs=(made,))
                read = made
        return read

    def _add_results(self, call: TracedCall) -> tuple[View | None, ...]:
        made = set(call.makes)
        outputs: list[View | None] = []
        for index, value in enumerate(call.results):
            if isinstance(value, torch.Tensor) and storage_key(value) in made:
                made.remove(storage_key(value))
                name = call.node.name if len(call.results) == 1 else f"{call.node.name}.{index}"
                self._add_storage(value, self._roles.get(self._key(value), Role.ACTIVATION), name)
                outputs.append(self.view(value))
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

    def view(self, value: torch.Tensor) -> View:
        """Return the window that a fake tensor is."""
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
