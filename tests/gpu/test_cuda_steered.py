"""Tensors of CUDA graphs that come where it was worked out: as small as that says, and eager's bits."""

import dataclasses

import pytest

from tensile_db.scheduler.sharing.recorded_memory import recorded_memory
from tensile_db.worker.workspaces.charging import with_workspaces
from tests.gpu.measured_workspaces import measured_apart
from tests.late.runs import Told
from tests.steps.bitwise_runs import (
    as_planned,
    capture,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import training_of

# Where PyTorch has no deterministic kernel it says so; here that is no defect.
pytestmark = pytest.mark.filterwarnings("default")

#: With batches whose tensors come from the range of large ones.
NETWORKS = [("resnet", 2048), ("vgg without resizing", 512), ("densenet", 1024)]


def test_pytorchs_allocator_gives_the_places_that_it_is_left(open_gpu):
    assert open_gpu(replay=True).spec.steers


def test_without_replay_nothing_is_steered(open_gpu):
    assert not open_gpu().spec.steers


@pytest.mark.parametrize(("network", "batch"), NETWORKS)
def test_a_steered_recording_holds_what_was_worked_out_and_computes_eagers_bits(
    gpu, open_gpu, network, batch
):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of(network, "momentum", batch), iterations=5)
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    # Charged, as by a worker: what is not counted would have no room beside the recording.
    step = with_workspaces(step, measured_apart(step, device))
    plan = tight_plan(step, device, 0.7)
    step, program = as_planned(step, plan, device), plan.program
    unsteered = recorded_memory(step.graph, program, steers=False)
    steered = recorded_memory(step.graph, program, steers=True)
    assert steered.nbytes < unsteered.nbytes
    told = Told()
    got, results = train_here(
        device,
        step,
        state,
        program,
        training.batches(),
        budget_nbytes=program.resident_nbytes + steered.nbytes,
        tell=told,
    )
    ((what, detail),) = told.said
    assert (what, detail.get("steered")) == ("replayed", True), detail
    assert results[-1].replayed
    assert detail["held_nbytes"] <= steered.nbytes
    # Copies to another layout, which operators make within, come elsewhere.
    assert detail["astray"] < len(steered.steered.addresses) / 4
    assert differing(got, want) == []
    assert losses_of(results) == losses
