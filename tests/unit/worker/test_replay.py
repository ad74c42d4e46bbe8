"""Iterations taken down and replayed, on a device that puts everything off: eager's bits, exact accounts."""

import dataclasses

import pytest

from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tests import small_step as s
from tests.bitwise_runs import (
    SEED,
    bits_of,
    capture,
    differing,
    tight_plan,
    train_eagerly,
)
from tests.late_runs import open_late
from tests.late_runtime import SCHEDULES
from tests.late_step import late_step
from tests.small_networks import training_of
from tests.small_runs import SEED as SMALL_SEED
from tests.small_runs import assert_equal_states, open_memory, swapping_program, train

#: Room for an iteration's memory beside the state, also where tensors keep their places.
AMPLE = 1 << 28


@dataclasses.dataclass
class Told:
    """What an executor says of replay."""

    said: list = dataclasses.field(default_factory=list)

    def __call__(self, what, detail):
        self.said.append((what, dict(detail)))


def small_run(schedule, make, iterations, *, budget_nbytes=1 << 20, step=None, **opened):
    """Train the small step; return the results, the state, what was said, and the device's runtime."""
    runtime, device = open_late(schedule, can_record=True, **opened)
    step = step or s.small_step()
    told = Told()
    with open_memory(device, budget_nbytes) as memory:
        executor = Executor(late_step(step, runtime), memory, tell=told)
        executor.adopt(make(step))
        results = train(executor, iterations)
        device.memory.validate()
        state = executor.state()
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)
    assert runtime.open_tapes == []
    device.close()
    return results, state, told.said


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
def test_replayed_iterations_give_plain_pytorchs_values(one_thread, schedule, make):
    results, state, said = small_run(schedule, make, 8)
    assert [result.replayed for result in results] == [False, False] + 6 * [True]
    assert_equal_states(state, s.expected_state(8, SMALL_SEED))
    assert [what for what, _ in said] == ["replayed"]
    assert len({result.swapped_in_nbytes for result in results[1:]}) == 1


@pytest.mark.parametrize(
    ("network", "optimizer", "share", "schedule"),
    [
        *(("vgg with dropout", "momentum", 0.7, schedule) for schedule in SCHEDULES),
        ("vgg with dropout", "adamw", 0.7, "lazy"),
        ("mlp", "adam", 0.6, "copies first"),
        ("resnet", "momentum", 0.5, "lazy"),
        ("resnet", "adam", 0.6, "random 2"),
        pytest.param("vit", "adamw", 0.5, "random 1", marks=pytest.mark.slow),
        *(pytest.param("resnet", "sgd", 0.6, schedule, marks=pytest.mark.slow) for schedule in SCHEDULES),
    ],
)
def test_replayed_training_equals_eager_pytorch(one_thread, network, optimizer, share, schedule):
    training = dataclasses.replace(training_of(network, optimizer, 4), iterations=6)
    runtime, device = open_late(schedule, can_record=True)
    step, state = capture(training)
    plan = tight_plan(step, device, share)
    with JobMemory(device, job=1, budget_nbytes=AMPLE, state=state, seed=SEED) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(plan.program)
        results = [executor.run_iteration(batch, i) for i, batch in enumerate(training.batches(), start=1)]
        got = bits_of(executor.state())
    want, losses = train_eagerly(training)
    assert differing(got, want) == []
    assert [result.outputs["loss"].item() for result in results] == losses
    assert [result.replayed for result in results] == [False, False, True, True, True, True]
    assert all(result.swapped_in_nbytes > 0 for result in results)
    device.close()
