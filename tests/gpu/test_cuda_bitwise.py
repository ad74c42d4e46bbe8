"""Captured networks on a GPU, swapped and recomputed, against plain eager PyTorch there, bit for bit."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from tensile_db.capture.precision import Precision
from tensile_db.worker.devices.cuda.runtime import allow_tf32
from tests.at_once import at_once
from tests.steps.bitwise_runs import (
    as_planned,
    capture,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.row_networks import have_parts_of, products, row_training, vgg
from tests.steps.small_networks import training_of

pytestmark = pytest.mark.filterwarnings("default")


def eagerly_as(training, gpu):
    """Train eagerly, with TF32 allowed where that is the training's precision."""
    allow_tf32(training.precision is Precision.TF32)
    try:
        return train_eagerly(training, gpu)
    finally:
        allow_tf32(False)


def run_at_once(device, jobs, gpu, share):
    """Train each in a thread of its own; return the bits by job."""
    captured = [capture(training, gpu) for training in jobs]
    plans = [tight_plan(step, device, share) for step, _ in captured]
    states = {}

    def run(job):
        (step, state), plan = captured[job], plans[job]
        states[job], _ = train_here(device, step, state, plan.program, jobs[job].batches(), job=job)

    at_once(run, range(len(jobs)))
    return states


@pytest.mark.parametrize(
    ("network", "optimizer", "share"),
    [
        ("mlp", "adam", 0.6),
        ("transformer", "adam", 0.85),
        ("vgg without resizing", "adamw", 0.7),
        ("resnet", "momentum", 0.5),
        ("resnet", "adam", 0.6),
        ("vit", "adamw", 0.5),
    ],
)
@pytest.mark.parametrize("policy", ["tensile", "auto"])
def test_training_under_a_tight_budget_equals_eager_pytorch(gpu, open_gpu, network, optimizer, share, policy):
    device, training = open_gpu(), training_of(network, optimizer, 8)
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    plan = tight_plan(step, device, share, policy)
    got, results = train_here(device, as_planned(step, plan, device), state, plan.program, training.batches())
    assert losses_of(results) == losses
    assert differing(got, want) == []
    assert all(result.peak_nbytes <= plan.program.guaranteed_peak_nbytes for result in results)


@pytest.mark.parametrize(("network", "has_parts"), [(vgg, False), (products, True)])
def test_large_gradients_have_eager_pytorchs_bits_those_of_products_in_parts(
    monkeypatch, gpu, open_gpu, network, has_parts
):
    have_parts_of(monkeypatch)
    device, training = open_gpu(), row_training(network, "adam")
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    in_parts = any("[" in tensor.name for tensor in step.graph.tensors if tensor.role == "gradient")
    assert in_parts is has_parts
    plan = tight_plan(step, device, 0.8, "auto")
    got, results = train_here(device, as_planned(step, plan, device), state, plan.program, training.batches())
    assert (differing(got, want), losses_of(results)) == ([], losses)


@pytest.mark.parametrize(
    ("network", "precision"),
    [
        *product(("transformer", "resnet", "vit"), (Precision.BFLOAT16, Precision.TF32)),
        # The Transformer masks with a number that float16 does not have.
        *product(("vgg without resizing", "resnet", "vit"), (Precision.FLOAT16,)),
    ],
)
def test_training_in_another_precision_equals_eager_pytorch_in_it(gpu, open_gpu, network, precision):
    device, training = open_gpu(), replace(training_of(network, "adam", 8), precision=precision)
    want, losses = eagerly_as(training, gpu)
    step, state = capture(training, gpu)
    plan = tight_plan(step, device, 0.85)
    got, results = train_here(device, step, state, plan.program, training.batches())
    assert losses_of(results) == losses
    assert differing(got, want) == []


def test_jobs_in_all_precisions_at_once_give_what_each_gives_alone(gpu, open_gpu):
    device = open_gpu()
    jobs = [replace(training_of("resnet", "momentum", 8), precision=precision) for precision in Precision]
    wanted = [eagerly_as(training, gpu)[0] for training in jobs]
    assert len({tuple(sorted(want.items())) for want in wanted}) == len(jobs)
    states = run_at_once(device, jobs, gpu, 0.85)
    for job, want in enumerate(wanted):
        assert differing(states[job], want) == []


def test_jobs_at_once_give_what_each_gives_alone(gpu, open_gpu):
    device = open_gpu()
    jobs = [training_of(*each, 4) for each in (("resnet", "momentum"), ("vit", "adamw"), ("mlp", "adam"))]
    wanted = [train_eagerly(training, gpu)[0] for training in jobs]
    states = run_at_once(device, jobs, gpu, 0.7)
    for job, want in enumerate(wanted):
        assert differing(states[job], want) == []


def test_the_allocator_holds_what_the_account_says(gpu, open_gpu):
    device, training = open_gpu(), training_of("vit", "adam", 64)
    step, state = capture(training, gpu)
    plan = tight_plan(step, device, 0.6)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _, results = train_here(device, step, state, plan.program, training.batches())
    held = torch.cuda.max_memory_allocated() - before
    # Blocks are multiples of 512 bytes; cuBLAS keeps a workspace of up to 32 MiB for each thread.
    slack = 512 * len(step.graph.tensors) + 40 * 2**20
    assert results[-1].peak_nbytes - 2**20 <= held <= results[-1].peak_nbytes + slack
