"""Puts a captured step together, call by call, in eager PyTorch's order.

The one mutable object of a capture: tensors and calls are only ever added.  What a call reads and writes
follows from its operator's schema (operators.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tensile_db.capture import operators
from tensile_db.capture.step import Call, CapturedStep, View
from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, Tensor, TensorId


class StepBuilder:
    """Collects the tensors, ops and calls of one step."""

    def __init__(self, device: torch.device | None = None) -> None:
        #: Where the step will run, the CPU by default.
        self.device = device or torch.device("cpu")
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._calls: list[Call] = []
        self._inputs: tuple[View, ...] = ()
        self._outputs: dict[str, View] = {}
        self._state: dict[str, View] = {}

    def add_tensor(
        self, *, nbytes: int, dtype: torch.dtype, shape: Sequence[int], role: Role, name: str
    ) -> TensorId:
        """Add a storage of `nbytes`, made by a value of this dtype and shape."""
        tensor = TensorId(len(self._tensors))
        self._tensors.append(
            Tensor(
                id=tensor,
                nbytes=nbytes,
                dtype=str(dtype).removeprefix("torch."),
                shape=tuple(shape),
                role=role,
                persistent=role in (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE),
                name=name,
            )
        )
        return tensor

    def add_dense(self, like: View, *, role: Role, name: str) -> View:
        """Add a storage that holds a dense value laid out as `like`, and return the view of all of it."""
        count = 1
        for size in like.size:
            count *= size
        tensor = self.add_tensor(
            nbytes=count * like.dtype.itemsize, dtype=like.dtype, shape=like.size, role=role, name=name
        )
        return View(tensor=tensor, dtype=like.dtype, size=like.size, stride=like.stride, offset=0)

    def add_state(self, name: str, view: View) -> None:
        """Name a persistent tensor; `view` is all of it."""
        self._state[name] = view

    def load_batch(self, inputs: Sequence[View]) -> None:
        """Add the op that makes the inputs."""
        assert not self._ops, "the batch is loaded first"
        self._inputs = tuple(inputs)
        self._add(
            function=None,
            target="tensile.load_batch",
            phase=Phase.FORWARD,
            outputs=self._inputs,
            writes={view.tensor for view in inputs},
        )

    def report(self, outputs: Mapping[str, View], *, phase: Phase) -> None:
        """Add the op that reads the results."""
        self._outputs = dict(outputs)
        self._add(
            function=None,
            target="tensile.report",
            phase=phase,
            args=tuple(outputs.values()),
            reads={view.tensor for view in outputs.values()},
        )

    def call(
        self,
        function: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        *,
        phase: Phase,
        outputs: Sequence[View | None] = (None,),
        flops: int = 0,
        unread: Sequence[int] = (),
    ) -> None:
        """Add an operator call; `outputs` as in Call.

        unread: places of arguments of which only the shape matters.
        """
        kwargs = {} if kwargs is None else kwargs
        values = [args[place] for place in range(len(args)) if place not in unread]
        read = {view.tensor for view in views((args, kwargs))}
        updated = {view.tensor for view in views(operators.written_arguments(function, args, kwargs))}
        made = {view.tensor for view in outputs if view is not None}
        random = operators.is_random(function, args, kwargs)
        recompute_args = operators.recompute_arguments(function, args)
        if recompute_args is None:
            touched = updated
        else:
            touched = {
                view.tensor for view in views(operators.written_arguments(function, recompute_args, kwargs))
            }
        touches_state = any(self._tensors[tensor].persistent for tensor in touched)
        with_source = operators.with_random_source(function, kwargs) if random else None
        self._add(
            function=function,
            target=str(function),
            phase=phase,
            args=args,
            kwargs=kwargs if with_source is None else with_source,
            outputs=tuple(outputs),
            reads=read,
            writes=updated | made,
            flops=flops,
            recomputable=not random and not touches_state,
            draws_from_default_generator=random and with_source is None,
            recompute_args=recompute_args,
            unread=read - {view.tensor for view in views((values, kwargs))},
        )

    def build(self, scalars: Callable[[int], Mapping[str, float]], *, tf32: bool = False) -> CapturedStep:
        """Return the step; `scalars` and `tf32` as in CapturedStep."""
        return CapturedStep(
            graph=StepGraph(tensors=tuple(self._tensors), ops=tuple(self._ops)),
            calls=tuple(self._calls),
            inputs=self._inputs,
            outputs=self._outputs,
            state=self._state,
            scalars=scalars,
            tf32=tf32,
        )

    def _add(
        self,
        *,
        function: torch._ops.OpOverload | None,
        target: str,
        phase: Phase,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        outputs: tuple[View | None, ...] = (),
        reads: set[TensorId] | None = None,
        writes: set[TensorId] | None = None,
        flops: int = 0,
        recomputable: bool = False,
        draws_from_default_generator: bool = False,
        recompute_args: tuple[Any, ...] | None = None,
        unread: set[TensorId] | None = None,
    ) -> None:
        op = OpId(len(self._ops))
        kwargs = {} if kwargs is None else kwargs
        # An updated argument is read and written, so that its bytes move twice.
        updated = operators.written_arguments(function, args, kwargs) if function is not None else []
        moved = [*views((args, kwargs)), *views(updated), *views(outputs)]
        self._ops.append(
            Op(
                id=op,
                target=target,
                phase=phase,
                reads=tuple(sorted(reads or ())),
                writes=tuple(sorted(writes or ())),
                # ATen's CPU kernels are charged nothing beyond their tensors; a device that measures
                # its kernels' workspace adds it where it plans.
                workspace_nbytes=0,
                flops=flops,
                moved_nbytes=sum(operators.view_nbytes(view) for view in moved),
                recomputable=recomputable,
                unread=tuple(sorted(unread or ())),
            )
        )
        self._calls.append(
            Call(
                op=op,
                function=function,
                args=args,
                kwargs=kwargs,
                outputs=outputs,
                draws_from_default_generator=draws_from_default_generator,
                recompute_args=recompute_args,
            )
        )


def views(value: Any) -> Iterator[View]:
    """Return every View within nested tuples, lists and mappings, in order."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from views(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from views(item)
