"""Every policy's plan of a network in bfloat16: the replay agrees, and it trains to eager autocast's bits."""

import functools
from copy import deepcopy

import pytest
import timm
import torch

from tensile_db.capture.precision import Precision
from tensile_db.capture.split_step import split_step
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Recompute, SwapOut
from tensile_db.scheduler.policies import POLICIES, UNBUDGETED, capuchin, vanilla
from tensile_db.scheduler.request import JobRequest
from tests.bitwise_runs import Training, capture, differing, losses_of, train_eagerly, train_here
from tests.replayed_plans import replay_of

#: Left out of `make check`.
pytestmark = pytest.mark.slow

#: Whether a policy's plans swap, whether they recompute; None, and where a policy is left out: as it comes.
ACTS = {
    "vanilla": (False, False),
    "vdnn_conv": (True, False),
    "vdnn_all": (True, False),
    "checkpoint": (False, True),
    "checkpoint_articulation": (False, True),
    "superneurons": (None, True),
    "superneurons_memory": (None, True),
    "tensile": (True, None),
}


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
    request = JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=predict_latencies_ns(step.graph, cpu_device.spec),
        policy=policy,
        memory_limit_nbytes=None
        if policy in UNBUDGETED
        else (capuchin.least_nbytes(step.graph) + vanilla.peak_nbytes(step.graph)) // 2,
    )
    (made,) = plan_jobs([request], cpu_device.spec)
    seen = replay_of(request, made, cpu_device.spec, iterations=6)
    assert (seen.peak_nbytes, seen.period_ns) == (made.prediction.peak_nbytes, made.prediction.time_ns)
    for kind, expected in zip((SwapOut, Recompute), ACTS.get(policy, (None, None)), strict=True):
        assert expected in (None, any(isinstance(event, kind) for event in made.plan.events))
    in_parts = split_step(step, made.plan.splits, cpu_device.torch_device)
    batches = _training(Precision.BFLOAT16).batches()
    got, results = train_here(cpu_device, in_parts, deepcopy(state), made.program, batches)
    assert all(result.peak_nbytes <= made.program.guaranteed_peak_nbytes for result in results)
    if made.plan.splits:
        # Sums over parts are rounded otherwise than eager's, but alike whatever is swapped.
        roomy = lower(in_parts.graph, vanilla.plan_one(in_parts.graph))
        want, others = train_here(cpu_device, in_parts, deepcopy(state), roomy, batches, job=2)
        losses = losses_of(others)
    else:
        want, losses = _eager()
    assert differing(got, want) == []
    assert losses_of(results) == losses


def test_training_in_bfloat16_measures_a_smaller_peak_than_in_float32(cpu_device):
    peaks = {}
    for job, precision in enumerate((Precision.FLOAT32, Precision.BFLOAT16), start=1):
        training = _training(precision)
        step, state = capture(training)
        program = lower(step.graph, vanilla.plan_one(step.graph))
        _, results = train_here(cpu_device, step, state, program, training.batches(), job=job)
        peaks[precision] = max(result.peak_nbytes for result in results)
    assert peaks[Precision.BFLOAT16] < 0.85 * peaks[Precision.FLOAT32]
