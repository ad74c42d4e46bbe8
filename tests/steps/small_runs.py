"""Runs of small_step.py's step, for tests of the executor."""

import torch

from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free
from tensile_db.worker.execution.job_memory import JobMemory
from tests.steps import small_step as s

SEED = 11


def open_memory(device, budget_nbytes=1 << 20, job=1, state=None):
    return JobMemory(device, job=job, budget_nbytes=budget_nbytes, state=state or s.small_state(), seed=SEED)


def train(executor, iterations, first=1):
    return [
        executor.run_iteration(s.small_batch(iteration), iteration)
        for iteration in range(first, first + iterations)
    ]


def persistent(memory, step):
    """Return the blocks that a step keeps, each once."""
    return dict.fromkeys(block for block in memory.bind(step) if block.persistent)


def assert_equal_states(got, want):
    assert sorted(got) == sorted(want)
    assert [name for name in want if not torch.equal(got[name], want[name])] == []


def swapping_program(step):
    """Momentum lives on the host; w1 leaves in the backward pass; h is swapped, d recomputed never."""
    return s.program(
        step,
        [
            Compute(op=s.LOAD),
            Compute(op=s.MM1),
            CopyOut(tensor=s.W1_T),
            Compute(op=s.RELU),
            Compute(op=s.DROPOUT),
            CopyOut(tensor=s.H, delta_ns=5),
            Compute(op=s.MM2),
            Compute(op=s.LOSS),
            Await(tensor=s.W1_T),
            Compute(op=s.GW2),
            Free(tensor=s.D),
            Await(tensor=s.H),
            Compute(op=s.GD),
            Free(tensor=s.Y),
            Compute(op=s.GH),
            CopyIn(tensor=s.H),
            Free(tensor=s.GD_T),
            Free(tensor=s.MASK),
            CopyIn(tensor=s.M1_T),
            Await(tensor=s.H),
            Compute(op=s.GRELU),
            Free(tensor=s.H),
            Free(tensor=s.GH_T),
            Compute(op=s.GW1),
            Free(tensor=s.X),
            Free(tensor=s.GR_T),
            Await(tensor=s.M1_T),
            Compute(op=s.M1),
            Compute(op=s.ADD1),
            Free(tensor=s.GW1_T),
            CopyIn(tensor=s.W1_T),
            Await(tensor=s.W1_T),
            Compute(op=s.W1),
            CopyOut(tensor=s.M1_T),
            Compute(op=s.W2),
            Free(tensor=s.GW2_T),
            Compute(op=s.REPORT),
            Free(tensor=s.LOSS_T),
            Await(tensor=s.M1_T),
        ],
        start_on_host=[s.M1_T],
    )


def there_and_back(step, name):
    """Return a tensor of the step, and a program that sends it away and back behind the first product."""
    (tensor,) = (each for each in step.graph.tensors if each.name == name)
    load, first, *others = s.plain_instructions(step)
    out, back, ended = CopyOut(tensor=tensor.id), CopyIn(tensor=tensor.id), Await(tensor=tensor.id)
    return tensor, s.program(step, [load, first, out, ended, back, ended, *others])
