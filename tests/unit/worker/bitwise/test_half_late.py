"""float16, whose loss is scaled, on a device that puts everything off: eager's bits, replayed and not."""

import dataclasses

import pytest

from tensile_db.capture.precision import Precision
from tests.examples import by_turns
from tests.late.runs import AMPLE, open_late
from tests.late.runtime import SCHEDULES
from tests.late.step import late_step
from tests.steps.bitwise_runs import (
    capture_once,
    differing,
    losses_of,
    skips_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import training_of

#: Left out of `make check`.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("network", "optimizer", "share", "skips", "replays", "schedule"),
    by_turns(
        [("vgg with dropout", "adam", 0.7, True, True), ("resnet", "momentum", 0.5, False, False)],
        SCHEDULES,
    ),
)
def test_training_in_float16_equals_a_grad_scalers(
    one_thread, network, optimizer, share, skips, schedule, replays
):
    training = dataclasses.replace(
        training_of(network, optimizer, 8), precision=Precision.FLOAT16, iterations=8
    )
    runtime, device = open_late(schedule, can_record=replays)
    step, state = capture_once(training)
    program = tight_plan(step, device, share).program
    budget_nbytes = AMPLE if replays else None
    got, results = train_here(
        device, late_step(step, runtime), state, program, training.batches(), budget_nbytes=budget_nbytes
    )
    want, losses = train_eagerly(training)
    assert differing(got, want) == []
    assert losses_of(results) == losses
    assert [result.replayed for result in results] == [False, False] + 6 * [replays]
    assert all(result.swapped_in_nbytes > 0 for result in results)
    # Updates are left out, while the iteration is replayed, too.
    assert (skips_of(results[2:]) > 0) == skips
    device.close()
