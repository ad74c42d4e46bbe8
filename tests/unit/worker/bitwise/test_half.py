"""Every policy's plan of a network in 16 bits: the replay agrees, and it trains to eager autocast's bits."""

import functools
from dataclasses import replace
from itertools import product

import pytest
import timm
import torch

from tensile_db.capture.precision import Precision
from tensile_db.errors import KernelFailed
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies import POLICIES, vanilla
from tests.examples import one_in
from tests.steps.bitwise_runs import Training, capture_once, train_eagerly, train_here
from tests.steps.policy_runs import train_by_policy
from tests.steps.small_networks import training_of

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

HALF = [Precision.BFLOAT16, Precision.FLOAT16]


def _resnet():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return timm.create_model("test_resnet", num_classes=5).train()


def _training(precision):
    return Training(
        build=_resnet, shape=(16, 3, 32, 32), optimizer="momentum", iterations=2, precision=precision
    )


@functools.cache
def _eager(precision):
    return train_eagerly(_training(precision))


@functools.cache
def _captured(precision):
    return capture_once(_training(precision))


@pytest.mark.parametrize(("policy", "precision"), one_in(6, product(POLICIES, HALF)))
def test_training_in_16_bits_by_a_policys_plan_equals_eager_autocast(cpu_device, policy, precision):
    step, state = _captured(precision)
    batches = _training(precision).batches()
    train_by_policy(cpu_device, policy, step, state, batches, lambda: _eager(precision))


@pytest.mark.parametrize("precision", HALF)
def test_training_in_16_bits_measures_a_smaller_peak_than_in_float32(cpu_device, precision):
    peaks = []
    for job, each in enumerate((Precision.FLOAT32, precision), start=1):
        training = _training(each)
        step, state = capture_once(training)
        program = lower(step.graph, vanilla.plan_one(step.graph))
        _, results = train_here(cpu_device, step, state, program, training.batches(), job=job)
        peaks.append(max(result.peak_nbytes for result in results))
    assert peaks[1] < 0.85 * peaks[0]


def test_a_network_that_masks_with_what_float16_does_not_have_fails_as_eager_pytorch_does(cpu_device):
    training = replace(training_of("transformer", "sgd", 8), precision=Precision.FLOAT16)
    with pytest.raises(RuntimeError, match="without overflow"):
        train_eagerly(training)
    step, state = capture_once(training)
    program = lower(step.graph, vanilla.plan_one(step.graph))
    with pytest.raises(KernelFailed, match="without overflow"):
        train_here(cpu_device, step, state, program, training.batches())
