"""Buffers of the host, worked out for programs written by hand."""

import pytest

from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Program
from tensile_db.scheduler.sharing.host_buffers import host_buffers
from tests.steps import small_step as s

GRAPH = s.small_step().graph
#: Bytes of the activations h, d and gd, and of the momentum m1 and the gradient gw1.
ACTIVATION, STATE = (GRAPH.tensors[tensor].nbytes for tensor in (s.H, s.M1_T))


def there(tensor):
    """Return what takes a tensor to the host."""
    return [CopyOut(tensor=tensor), Await(tensor=tensor)]


def and_back(tensor):
    """Return what takes a tensor there and back; its copy stays."""
    return [*there(tensor), CopyIn(tensor=tensor), Await(tensor=tensor)]


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        pytest.param([], [], id="nothing is swapped"),
        pytest.param([*there(s.H), *there(s.GD_T)], 2 * [ACTIVATION], id="two at once"),
        pytest.param([*there(s.MASK), *there(s.H)], [64, ACTIVATION], id="two sizes"),
        pytest.param([*and_back(s.H), *there(s.H)], [ACTIVATION], id="unchanged it is not copied again"),
        pytest.param(
            [*and_back(s.H), Free(tensor=s.H), *there(s.GD_T)], [ACTIVATION], id="freed, it leaves its buffer"
        ),
        pytest.param(
            [*and_back(s.H), Compute(op=s.RELU), *there(s.GD_T)],
            [ACTIVATION],
            id="changed, it leaves its buffer",
        ),
        pytest.param(
            [*and_back(s.H), Compute(op=s.RELU, recompute=True), *there(s.GD_T)],
            [ACTIVATION],
            id="changed once more, likewise",
        ),
        pytest.param(
            [*and_back(s.D), Compute(op=s.DROPOUT, recompute=True), *there(s.GD_T)],
            2 * [ACTIVATION],
            id="made anew it is what it was",
        ),
        pytest.param(
            [*and_back(s.M1_T), Compute(op=s.M1), *there(s.GW1_T), *there(s.M1_T)],
            2 * [STATE],
            id="state keeps its buffer",
        ),
    ],
)
def test_as_many_buffers_are_needed_as_are_in_use_at_once(instructions, expected):
    assert needed(instructions, had=()) == expected


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        pytest.param([*and_back(s.M1_T), Compute(op=s.M1), *there(s.M1_T)], [], id="it has its buffer"),
        pytest.param(
            [*and_back(s.M1_T), Compute(op=s.M1), *there(s.GW1_T)], [STATE], id="which is nobody else's"
        ),
    ],
)
def test_state_that_the_host_has_from_the_beginning_needs_none(instructions, expected):
    assert needed(instructions, had={s.M1_T}) == expected


def needed(instructions, *, had):
    program = Program(
        instructions=tuple(instructions), start_on_host=(), guaranteed_peak_nbytes=0, resident_nbytes=0
    )
    return host_buffers(GRAPH, program, had=had)
