"""Walks a captured step in order, with real tensors and nothing planned: the plainest executor there can be.

It checks on the way what the graph promises: results laid out as the views say, storages of the stated size,
nothing changed that an op does not say it writes, and recomputation that gives the same bits.
"""

import dataclasses

import torch

from tensile_db.capture.builder import views
from tensile_db.capture.nodes import flattened
from tensile_db.capture.step import RandomSource, Scalar, View
from tensile_db.kernels.recurrent import MKLDNN_RNN_LAYER_IN_TRAINING


@dataclasses.dataclass
class Interpreter:
    step: object
    generator: torch.Generator
    #: Check every op's promises; slow.
    strict: bool = False
    storages: dict = dataclasses.field(default_factory=dict)
    recomputed: int = 0
    #: Iterations that updated nothing, where the loss is scaled.
    skipped: int = 0

    def load_state(self, state):
        assert list(state) == list(self.step.state)
        for name, view in self.step.state.items():
            tensor = state[name]
            assert (tensor.shape, tensor.stride(), tensor.dtype) == (
                view.size,
                view.stride,
                view.dtype,
            )
            self.storages[view.tensor] = tensor.untyped_storage()

    def state(self):
        return {name: self.view(view) for name, view in self.step.state.items()}

    def view(self, view):
        window = torch.empty(0, dtype=view.dtype)
        return window.set_(self.storages[view.tensor], view.offset, view.size, view.stride)

    def run(self, update, batch):
        """Return the outputs of one iteration by name; update: the number of its update, from 1."""
        scalars = self.step.scalars(update)
        with torch.no_grad():
            for op, call in zip(self.step.graph.ops, self.step.calls, strict=True):
                if op.target == "tensile.load_batch":
                    for view, tensor in zip(self.step.inputs, batch, strict=True):
                        self.storages[view.tensor] = tensor.clone().untyped_storage()
                elif op.target == "tensile.report":
                    return {name: self.view(view).clone() for name, view in self.step.outputs.items()}
                elif self.strict:
                    self.checked(op, call, scalars)
                else:
                    self.keep(call, self.compute(call, call.args, scalars))
        raise AssertionError("no report")

    def compute(self, call, args, scalars):
        args = self.real(args, scalars)
        kwargs = self.real(dict(call.kwargs), scalars)
        if not call.draws_from_default_generator:
            return list(flattened(call.function(*args, **kwargs)))
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self.generator.get_state())
        try:
            return list(flattened(call.function(*args, **kwargs)))
        finally:
            self.generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)

    def keep(self, call, results):
        for view, result in zip(call.outputs, results, strict=True):
            if view is not None:
                self.storages[view.tensor] = result.untyped_storage()

    def real(self, value, scalars):
        if isinstance(value, View):
            return self.view(value)
        if isinstance(value, Scalar):
            return scalars[value.name]
        if isinstance(value, RandomSource):
            return self.generator
        if isinstance(value, list | tuple):
            return type(value)(self.real(item, scalars) for item in value)
        if isinstance(value, dict):
            return {key: self.real(item, scalars) for key, item in value.items()}
        return value

    def checked(self, op, call, scalars):
        before = {tensor: bits(storage) for tensor, storage in self.storages.items() if tensor in op.reads}
        results = self.compute(call, call.args, scalars)
        self.keep(call, results)
        for view, result in zip(call.outputs, results, strict=True):
            if view is not None:
                assert tuple(result.shape) == view.size, (op, result.shape)
                assert result.stride() == view.stride, (op, view, result.stride())
                assert result.storage_offset() == view.offset, op
                assert result.dtype == view.dtype, op
                assert result.untyped_storage().nbytes() == self.step.graph.tensors[view.tensor].nbytes, op
        for tensor, old in before.items():
            if tensor not in op.writes:
                assert torch.equal(old, bits(self.storages[tensor])), f"{op} changed {tensor}"
        for tensor in op.reads:
            if tensor not in {view.tensor for view in views((call.args, call.kwargs))}:
                raise AssertionError(f"{op} reads {tensor}, which is no argument")
        if (op.recomputable and not set(op.reads) & set(op.writes)) or call.recompute_args is not None:
            args = call.args if call.recompute_args is None else call.recompute_args
            persistent = {tensor: bits(self.storages[tensor]) for tensor in op.reads}
            again = self.compute(call, args, scalars)
            self.recomputed += 1
            for view, old, new in zip(call.outputs, results, again, strict=True):
                if view is not None and view.tensor not in with_gaps(call):
                    assert same_bits(old, new), op
            for tensor, old in persistent.items():
                assert torch.equal(old, bits(self.storages[tensor])), f"recomputing {op} changed {tensor}"


def with_gaps(call):
    """Return the tensors that a call does not fill: nobody reads what it leaves as it was."""
    if call.function.__name__.startswith("empty"):
        return {view.tensor for view in call.outputs}
    if call.function is MKLDNN_RNN_LAYER_IN_TRAINING:
        # oneDNN's workspace has its tensors at the beginnings of pages.
        return {call.outputs[-1].tensor}
    return set()


def bits(storage):
    """Return a copy of a storage's bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(storage).clone()


def same_bits(one, other):
    """Compare values as bytes, so that a zero's sign and a NaN's payload count."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
