"""Every policy's plan of a network in bfloat16: the replay agrees, and it trains to eager autocast's bits."""

import functools

import pytest
import timm
import torch

from tensile_db.capture.precision import Precision
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies import POLICIES, vanilla
from tests.bitwise_runs import Training, capture, train_eagerly, train_here
from tests.policy_runs import train_by_policy

#: Left out of `make check`.
pytestmark = pytest.mark.slow


def _resnet():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return timm.create_model("test_resnet", num_classes=5).train()


def _training(precision):
    return Training(
        build=_resnet, shape=(16, 3, 32, 32), optimizer="momentum", iterations=2, precision=precision
    )


@functools.cache
def _eager():
    return train_eagerly(_training(Precision.BFLOAT16))


@functools.cache
def _captured():
    return capture(_training(Precision.BFLOAT16))


@pytest.mark.parametrize("policy", POLICIES)
def test_training_in_bfloat16_by_a_policys_plan_equals_eager_autocast(cpu_device, policy):
    step, state = _captured()
    batches = _training(Precision.BFLOAT16).batches()
    train_by_policy(cpu_device, policy, step, state, batches, _eager)


def test_training_in_bfloat16_measures_a_smaller_peak_than_in_float32(cpu_device):
    peaks = {}
    for job, precision in enumerate((Precision.FLOAT32, Precision.BFLOAT16), start=1):
        training = _training(precision)
        step, state = capture(training)
        program = lower(step.graph, vanilla.plan_one(step.graph))
        _, results = train_here(cpu_device, step, state, program, training.batches(), job=job)
        peaks[precision] = max(result.peak_nbytes for result in results)
    assert peaks[Precision.BFLOAT16] < 0.85 * peaks[Precision.FLOAT32]
