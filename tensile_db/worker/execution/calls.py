"""Makes each call of a step into a function without arguments that does no needless work.

Constants are in place before the first run, tensors over a storage are made when first needed and kept until
the storage leaves.  At run time no argument is searched for anything.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tensile_db.capture.networks.randomness import DEFAULT_GENERATOR_LOCK
from tensile_db.capture.step import Call, RandomSource, Scalar, View
from tensile_db.errors import InvalidPlan
from tensile_db.graph import Op, TensorId
from tensile_db.worker.devices.block import Block
from tensile_db.worker.execution.device_failures import Asked, op_failure
from tensile_db.worker.execution.job_memory import view_of
from tensile_db.worker.execution.results import Relayout, keeper

Kernel = Callable[[], None]


class Values:
    """Everything that calls take from outside: tensors over storages, and this iteration's scalars."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        #: By place; None where a tensor is not made yet.
        self.slots: list[Any] = []
        self._views: list[View | None] = []
        self._places: dict[View | str, int] = {}
        self._places_of: dict[TensorId, list[int]] = {}

    def place(self, value: View | Scalar) -> int:
        """Return the place of a view or scalar in `slots`."""
        key = value.name if isinstance(value, Scalar) else value
        if key in self._places:
            return self._places[key]
        place = self._places[key] = len(self.slots)
        self.slots.append(None)
        self._views.append(value if isinstance(value, View) else None)
        if isinstance(value, View):
            if value.tensor not in self._places_of:
                self._places_of[value.tensor] = []
                self.blocks[value.tensor].caches.append((self.slots, self._places_of[value.tensor]))
            self._places_of[value.tensor].append(place)
        return place

    def make(self, place: int) -> torch.Tensor:
        """Make the tensor of a place.  Raises InvalidPlan where its storage is not on the device."""
        view = self._views[place]
        assert view is not None, "a scalar has no value in this iteration"
        block = self.blocks[view.tensor]
        if block.storage is None:
            raise InvalidPlan(f"tensor {view.tensor} ({block.name}) is needed but not on the device")
        tensor = self.slots[place] = view_of(block.storage, view)
        return tensor

    def get(self, view: View) -> torch.Tensor:
        """Return the tensor that a view is now."""
        place = self.place(view)
        tensor = self.slots[place]
        return self.make(place) if tensor is None else tensor

    def set_scalars(self, scalars: Mapping[str, float]) -> None:
        """Set the numbers of an iteration; those that no call takes are left out."""
        for name, value in scalars.items():
            place = self._places.get(name)
            if place is not None:
                self.slots[place] = value

    def close(self) -> None:
        """Stop watching blocks that outlive the step."""
        for block in self.blocks:
            block.caches = [cache for cache in block.caches if cache[0] is not self.slots]
        self.slots.clear()


def compile_call(
    op: Op,
    call: Call,
    values: Values,
    generator: torch.Generator,
    relayout: Relayout,
    *,
    device: Asked,
    default_generator: torch.Generator,
    in_float32: Callable[[Callable[..., Any]], Callable[..., Any]],
    again: bool,
) -> Kernel:
    """Return a function that runs the call and keeps what it makes in the blocks.

    device: asked, where the call fails, whether it is lost.
    generator: the job's own; default_generator: the device's, for which it stands in.
    in_float32: what the device makes of a function so that it computes float32 as the job wants.
    again: run it as a recomputation, with persistent tensors untouched.
    It raises what op_failure and device_failures tell of, and InvalidPlan where a result is not what was
    captured; then nothing is kept.
    """
    assert call.function is not None, f"op {op.id} {op.target} is none of PyTorch's"
    args = call.recompute_args if again and call.recompute_args is not None else call.args
    function = in_float32(call.function)
    if call.draws_from_default_generator and generator is not default_generator:
        # Outermost: who waits for the generator, which others hold for long, must hold no other lock.
        function = drawing_from(generator, default_generator, function)
    template, holes, nested = _template([*args, *call.kwargs.values()], values, generator)
    count, names = len(args), tuple(call.kwargs)
    slots, make = values.slots, values.make
    places = [None if view is None else values.place(view) for view in call.outputs]
    keep = keeper(op, call.outputs, values.blocks, slots, places, relayout)

    def run() -> None:
        filled = template.copy()
        for position, place in holes:
            value = slots[place]
            filled[position] = make(place) if value is None else value
        for position, fill in nested:
            filled[position] = fill()
        try:
            if names:
                result = function(*filled[:count], **dict(zip(names, filled[count:], strict=True)))
            else:
                result = function(*filled)
        except Exception as error:
            # The error's traceback must not keep the tensors alive.
            filled.clear()
            raise op_failure(op, error, device) from error
        if keep is None:
            return
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        # One that is laid out anew must not be held here.
        del result
        keep(results)

    return run


def _template(
    arguments: Sequence[Any], values: Values, generator: torch.Generator
) -> tuple[list[Any], list[tuple[int, int]], list[tuple[int, Callable[[], Any]]]]:
    """Split arguments into constants in place, (position, slot) to fill, and (position, maker) of lists."""
    template: list[Any] = []
    holes: list[tuple[int, int]] = []
    nested: list[tuple[int, Callable[[], Any]]] = []
    for position, argument in enumerate(arguments):
        template.append(None)
        match argument:
            case View() | Scalar():
                holes.append((position, values.place(argument)))
            case RandomSource():
                template[position] = generator
            case list() | tuple() if any(isinstance(item, View | Scalar) for item in argument):
                nested.append((position, _list_maker(argument, values, generator)))
            case _:
                template[position] = argument
    return template, holes, nested


def _list_maker(items: Sequence[Any], values: Values, generator: torch.Generator) -> Callable[[], list[Any]]:
    template, holes, nested = _template(items, values, generator)
    assert not nested, "no ATen operator takes lists of lists of tensors"
    slots, make = values.slots, values.make

    def fill() -> list[Any]:
        filled = template.copy()
        for position, place in holes:
            value = slots[place]
            filled[position] = make(place) if value is None else value
        return filled

    return fill


def drawing_from(
    generator: torch.Generator, default: torch.Generator, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return `function` with the default generator being the job's while it is called, and left as it was.

    Kernels that run later have taken their random numbers' place in the sequence by the end of the call.
    """
    assert generator.device == default.device, "a device's own default generator is stood in for"

    def draw(*args: Any, **kwargs: Any) -> Any:
        with DEFAULT_GENERATOR_LOCK:
            others = default.get_state()
            default.set_state(generator.get_state())
            try:
                return function(*args, **kwargs)
            finally:
                generator.set_state(default.get_state())
                default.set_state(others)

    return draw
