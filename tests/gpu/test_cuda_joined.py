"""Updates of small tensors handed over as one, by PyTorch's kernels of many tensors: eager's bits."""

import dataclasses

import pytest
import torch

from tensile_db.worker.execution.joined_calls import CallForm, joined_variant
from tests.late.runs import Told
from tests.steps.bitwise_runs import capture, differing, losses_of, tight_plan, train_eagerly, train_here
from tests.steps.small_networks import training_of

# Where PyTorch has no deterministic kernel it says so; here that is no defect.
pytestmark = pytest.mark.filterwarnings("default")

aten = torch.ops.aten
GIB = 2**30


@pytest.mark.parametrize(
    ("function", "form"),
    [
        (aten.mul_.Tensor, CallForm(1, 1, ())),
        (aten.add_.Tensor, CallForm(2, 1, ("alpha",))),
        (aten.lerp_.Scalar, CallForm(2, 1, ())),
        (aten.addcmul_.default, CallForm(3, 1, ("value",))),
        (aten.sqrt.default, CallForm(1, 0, ())),
    ],
    ids=str,
)
def test_kernels_of_many_tensors_round_as_those_of_one(gpu, function, form):
    assert joined_variant(function, form, torch.device(gpu)) is not None


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_a_replay_with_joined_updates_has_eagers_bits(gpu, open_gpu, optimizer):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of("resnet", optimizer, 8), iterations=6)
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    program = tight_plan(step, device, 1.0).program
    told = Told()
    got, results = train_here(
        device, step, state, program, training.batches(), budget_nbytes=2 * GIB, tell=told
    )
    ((what, detail),) = told.said
    assert what == "replayed", detail
    assert detail["joined"] > len(step.graph.ops) // 4
    assert results[-1].replayed
    assert differing(got, want) == []
    assert losses_of(results) == losses
