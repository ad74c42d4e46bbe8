"""Every policy's plans of the papers' networks: the replay agrees, and they train bit for bit as eager does.

Width and depth are the networks' own; images are as small as each takes.
"""

from copy import deepcopy
from functools import cache, lru_cache

import pytest
import torch

from tensile_db.capture.architectures import build
from tensile_db.capture.split_step import split_step
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Recompute, SwapOut
from tensile_db.scheduler.policies import POLICIES, UNBUDGETED, capuchin, vanilla
from tensile_db.scheduler.request import JobRequest
from tests.bitwise_runs import CLASSES, Training, capture, differing, losses_of, train_eagerly, train_here
from tests.replayed_plans import replay_of

CPU = torch.device("cpu")

#: Pixels, and the optimizer: with less state they are faster to compare; more is in test_networks_bitwise.py.
NETWORKS = {
    "vgg16": (32, "sgd"),
    "resnet50": (32, "sgd"),
    "inception_v3": (75, "momentum"),
    "inception_v4": (75, "sgd"),
    "densenet121": (32, "sgd"),
    "vit_tiny_patch16_224": (32, "adamw"),
}
BATCH = 2
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


@cache
def original(network):
    pixels, _ = NETWORKS[network]
    return build(network, num_outputs=CLASSES, input_shape=(3, pixels, pixels), seed=7, options={})


def training_of(network):
    pixels, optimizer = NETWORKS[network]
    shape = (BATCH, 3, pixels, pixels)
    return Training(build=lambda: deepcopy(original(network)), shape=shape, optimizer=optimizer, iterations=2)


@cache
def eager(network):
    """Return the bits that eager PyTorch trains the network to, and its losses."""
    return train_eagerly(training_of(network))


@lru_cache(maxsize=1)
def captured(network):
    return capture(training_of(network))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_policys_plan_of_a_network(cpu_device, network, policy):
    step, state = captured(network)
    request = JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=predict_latencies_ns(step.graph, cpu_device.spec),
        policy=policy,
        memory_limit_nbytes=None if policy in UNBUDGETED else halfway_nbytes(step.graph),
    )
    (made,) = plan_jobs([request], cpu_device.spec)
    assert request.memory_limit_nbytes is None or made.budget_nbytes <= request.memory_limit_nbytes
    seen = replay_of(request, made, cpu_device.spec, iterations=6)
    assert (seen.peak_nbytes, seen.period_ns) == (made.prediction.peak_nbytes, made.prediction.time_ns)
    for kind, expected in zip((SwapOut, Recompute), ACTS.get(policy, (None, None)), strict=True):
        assert expected in (None, any(isinstance(event, kind) for event in made.plan.events))
    in_parts = split_step(step, made.plan.splits, CPU)
    batches = training_of(network).batches()
    got, results = train_here(cpu_device, in_parts, deepcopy(state), made.program, batches)
    assert all(result.peak_nbytes <= made.program.guaranteed_peak_nbytes for result in results)
    if made.plan.splits:
        # Sums over parts are rounded otherwise than eager's, but alike whatever is swapped.
        roomy = lower(in_parts.graph, vanilla.plan_one(in_parts.graph))
        want, others = train_here(cpu_device, in_parts, deepcopy(state), roomy, batches, job=2)
        losses = losses_of(others)
    else:
        want, losses = eager(network)
    assert differing(got, want) == []
    assert losses_of(results) == losses


def halfway_nbytes(graph):
    """Return a budget between what every policy that has one can meet, and what eager PyTorch holds."""
    return (capuchin.least_nbytes(graph) + vanilla.peak_nbytes(graph)) // 2
