"""A captured step whose kernels run later, on a LateRuntime, at the addresses that they were given."""

from dataclasses import dataclass, replace

import torch

from tensile_db.capture.networks.randomness import DEFAULT_GENERATOR_LOCK
from tensile_db.worker.execution.held_numbers import held_variant
from tensile_db.worker.execution.job_memory import view_of
from tensile_db.worker.execution.joined_calls import joined_variant
from tensile_db.worker.execution.joined_held_calls import joined_held_variant


def late_step(step, runtime):
    """Return the step with kernels that run later on the runtime."""
    calls = [
        call if call.function is None else replace(call, function=_late(step.graph, call, runtime))
        for call in step.calls
    ]
    return replace(step, calls=tuple(calls))


def _late(graph, call, runtime):
    function = call.function

    def enqueue(*args, **kwargs):
        made = [
            None if view is None else view_of(runtime.allocate(graph.tensors[view.tensor].nbytes), view)
            for view in call.outputs
        ]
        _launch(runtime, call, function, args, kwargs, [each for each in made if each is not None])
        # Handed back when the kernel is handed over, as GPUs' libraries do.
        workspace_nbytes = runtime.workspace(call, sum(each.nbytes for each in made if each is not None))
        if workspace_nbytes:
            runtime.allocate(workspace_nbytes)
        return made[0] if len(made) == 1 else made

    def enqueue_out(*args, out, **kwargs):
        _launch(runtime, call, function, args, kwargs, [out])
        return out

    def held_later(device):
        variant = held_variant(function, device)
        if variant is None:
            return None

        def enqueue_held(tensors, *others):
            runtime.launch(lambda *there: variant.run(there[:-3], *there[-3:]), *tensors, *others)

        return replace(variant, run=enqueue_held)

    def joined_later(form, device):
        variant = joined_variant(function, form, device)
        if variant is None:
            return None

        def enqueue_joined(tensors, numbers, results):
            count = len(results)

            def run(*there):
                *lists, results = _in_lists(there, count)
                variant.run(lists, numbers, results)

            runtime.launch(run, *(each for of_all in (*tensors, results) for each in of_all))

        return replace(variant, run=enqueue_joined)

    def joined_held_later(variant, device):
        joined = joined_held_variant(function, variant, device)
        if joined is None:
            return None

        def enqueue_joined_held(tensors, held, results, memory):
            lists, count, arity = [*tensors, results, *memory], len(results), len(tensors)

            def run(held, *there):
                found = _in_lists(there, count)
                joined.run(found[:arity], held, found[arity], found[arity + 1 :])

            runtime.launch(run, held, *(each for of_all in lists for each in of_all))

        return replace(joined, run=enqueue_joined_held)

    enqueue.out_variant = enqueue_out
    enqueue.joined_variant = joined_later
    enqueue.held_variant = held_later
    enqueue.joined_held_variant = joined_held_later
    return enqueue


def _in_lists(tensors, count):
    """Return tensors in lists of so many."""
    return [tensors[begin : begin + count] for begin in range(0, len(tensors), count)]


def _launch(runtime, call, function, args, kwargs, made):
    tensors = [each for each in _leaves([*args, *kwargs.values()]) if isinstance(each, torch.Tensor)]
    # What waits for its turn, or is taken down, must not hold the memory.
    args, kwargs = _formed(args), dict(zip(kwargs, _formed(kwargs.values()), strict=True))
    count = len(tensors)
    passage = getattr(runtime.current, "passage", None)
    default = torch.default_generator if passage is None else runtime.current.tape.generator

    def make():
        run = _drawing_now(function, call, args, kwargs, default)

        def kernel(*there):
            inputs, outputs = iter(there[:count]), iter(there[count:])
            results = run(
                *_filled(args, inputs), **dict(zip(kwargs, _filled(kwargs.values(), inputs), strict=True))
            )
            results = [results] if isinstance(results, torch.Tensor) or results is None else results
            for view, result in zip(call.outputs, results, strict=False):
                if view is not None:
                    next(outputs).copy_(result)

        return kernel

    runtime.launch_made(make, *tensors, *made)


def _drawing_now(function, call, args, kwargs, default):
    """Return the function drawing what is its own at this moment, as a GPU's kernels do when launched.

    default: what is drawn from where no generator is given.
    """
    drawn_from = [each for each in _leaves([*args, *kwargs.values()]) if isinstance(each, torch.Generator)]
    if call.draws_from_default_generator:
        with DEFAULT_GENERATOR_LOCK:
            others = torch.default_generator.get_state()
            state = default.get_state()
            torch.default_generator.set_state(state)
            function(*_zeros(args), **dict(zip(kwargs, _zeros(kwargs.values()), strict=True)))
            after = torch.default_generator.get_state()
            torch.default_generator.set_state(others)
            default.set_state(after)

        def draw(*there, **named):
            # The runtime's lock is held, which is this generator's.
            others = torch.default_generator.get_state()
            torch.default_generator.set_state(state)
            try:
                return function(*there, **named)
            finally:
                torch.default_generator.set_state(others)

        return draw
    if not drawn_from:
        return function
    (generator,) = drawn_from
    own = torch.Generator()
    own.set_state(generator.get_state())
    function(*_zeros(args), **dict(zip(kwargs, _zeros(kwargs.values()), strict=True)))

    def draw_own(*there, **named):
        swapped = [own if isinstance(each, torch.Generator) else each for each in there]
        return function(
            *swapped, **{name: own if isinstance(v, torch.Generator) else v for name, v in named.items()}
        )

    return draw_own


@dataclass(frozen=True)
class Form:
    """Stands for a tensor, without its memory."""

    shape: tuple
    dtype: torch.dtype


def _formed(values):
    return [
        _formed(value)
        if isinstance(value, list | tuple)
        else Form(tuple(value.shape), value.dtype)
        if isinstance(value, torch.Tensor)
        else value
        for value in values
    ]


def _leaves(values):
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _filled(values, tensors):
    return [
        _filled(value, tensors)
        if isinstance(value, list | tuple)
        else next(tensors)
        if isinstance(value, Form)
        else value
        for value in values
    ]


def _zeros(values):
    return [
        _zeros(value)
        if isinstance(value, list | tuple)
        else torch.zeros(value.shape, dtype=value.dtype)
        if isinstance(value, Form)
        else value
        for value in values
    ]
