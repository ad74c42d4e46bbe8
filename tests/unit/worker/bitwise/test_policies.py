"""Every policy's plan through the executor, against plain eager PyTorch, bit for bit."""

import functools
from dataclasses import replace

import pytest
import timm
import torch
from torch import nn

from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.policies.capuchin import least_nbytes
from tensile_db.scheduler.request import JobRequest
from tests.steps.bitwise_runs import Training, capture_once, differing, losses_of, train_eagerly, train_here

#: Left out of `make check`.
pytestmark = pytest.mark.slow

#: By policy: whether its plans of these networks swap, whether they recompute.
ACTS = {
    "vdnn_conv": (True, False),
    "vdnn_all": (True, False),
    "checkpoint": (False, True),
    "checkpoint_articulation": (False, True),
    "superneurons": (True, True),
    "superneurons_memory": (True, True),
    "capuchin": (True, True),
}


def _vgg():
    return timm.models.vgg.VGG(
        cfg=[8, "M", 16, 16, "M", 32, "M"], num_classes=5, drop_rate=0.5, mlp_ratio=0.02
    )


MODELS = {
    "vgg with dropout": _vgg,
    "resnet": lambda: timm.create_model("test_resnet", num_classes=5),
    "vit": lambda: timm.create_model("test_vit", num_classes=5, img_size=32),
}
OPTIMIZERS = {"vgg with dropout": "adam", "resnet": "momentum", "vit": "adamw"}


def _build(network) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[network]().train()


@functools.cache
def _eager(network):
    return train_eagerly(_training(network))


def _training(network):
    build = functools.partial(_build, network)
    return Training(build=build, shape=(16, 3, 32, 32), optimizer=OPTIMIZERS[network], iterations=2)


@pytest.mark.parametrize("network", ["vgg with dropout", "resnet"])
@pytest.mark.parametrize("policy", ACTS)
def test_training_by_a_policys_plan_equals_eager_pytorch(cpu_device, policy, network):
    swaps, recomputes = ACTS[policy]
    plan, got, results = _train(cpu_device, policy, network)
    want, losses = _eager(network)
    assert differing(got, want) == []
    assert losses_of(results) == losses
    assert all((result.swapped_in_nbytes > 0) == swaps for result in results)
    assert all((result.recomputed_ops > 0) == recomputes for result in results)
    assert all(result.peak_nbytes <= plan.program.guaranteed_peak_nbytes for result in results)


@pytest.mark.parametrize("policy", ["checkpoint", "superneurons", "capuchin"])
def test_a_transformer_trains_by_policies_that_know_no_layers_or_few(cpu_device, policy):
    _, got, results = _train(cpu_device, policy, "vit")
    want, losses = _eager("vit")
    assert differing(got, want) == []
    assert losses_of(results) == losses
    assert all(result.recomputed_ops > 0 for result in results)


def _train(device, policy, network):
    training = _training(network)
    step, state = capture_once(training)
    plan = _plan(step, device.spec, policy)
    got, results = train_here(device, step, state, plan.program, training.batches())
    return plan, got, results


def _plan(step, spec, policy):
    request = JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=predict_latencies_ns(step.graph, spec),
        policy=policy,
    )
    if policy == "capuchin":
        # The only one here that aims at a budget; the link is one behind which not all copies hide.
        spec = replace(spec, d2h_bytes_per_s=10**8, h2d_bytes_per_s=10**8)
        (free,) = plan_jobs([request], spec)
        limit_nbytes = (least_nbytes(step.graph) + free.budget_nbytes) // 2
        request = replace(request, memory_limit_nbytes=limit_nbytes)
    (plan,) = plan_jobs([request], spec)
    return plan
