"""Steps with tensors kept as codes, through the executor: eager PyTorch's bits, with less memory held."""

import pytest
import torch
from torch import nn

from tensile_db.capture.packed_step import planned_step
from tensile_db.graph import Phase
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.packing.latencies import as_packed
from tensile_db.scheduler.packing.packed_graph import packable
from tensile_db.scheduler.plan import Recompute, Rewriting
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.alone import plan_within
from tensile_db.scheduler.request import JobRequest
from tests.graphs.hand_made import device_of
from tests.steps.bitwise_runs import Training, capture, differing, losses_of, train_eagerly, train_here
from tests.steps.small_networks import training_of

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def all_packed(graph):
    return tuple(packable(graph))


@pytest.mark.parametrize("network", ["vgg with dropout", "resnet"])
def test_a_packed_step_trains_to_eagers_bits_in_less_memory(make_device, network):
    training = training_of(network, "adam", 32)
    step, state = capture(training)
    packed = all_packed(step.graph)
    assert packed
    made = planned_step(step, Rewriting(packed=packed), CPU)
    whole_nbytes = vanilla.peak_nbytes(step.graph)
    program = lower(made.graph, vanilla.plan_one(made.graph))
    got, results = train_here(make_device(1 << 32), made, state, program, training.batches())
    peak_nbytes = max(result.peak_nbytes for result in results)
    assert peak_nbytes <= program.guaranteed_peak_nbytes <= whole_nbytes
    if network != "resnet":
        assert program.guaranteed_peak_nbytes < whole_nbytes
    eager, losses = train_eagerly(training)
    assert (differing(got, eager), losses_of(results)) == ([], losses)


def dropping():
    """Return a network whose every layer keeps what dropout has left."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (nn.Linear(48, 48), nn.GELU(), nn.Dropout(0.25))]
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 48), *layers, nn.Linear(48, 5)).train()


def test_what_dropout_has_left_is_made_again_from_the_code_of_what_it_drew(make_device):
    training = Training(build=dropping, shape=(512, 3, 4, 4), optimizer="sgd")
    step, state = capture(training)
    # So slow a link that whatever has to go is made again.
    device, packed = device_of(1 << 32, 10**6), all_packed(step.graph)
    job = JobRequest(job_id=1, graph=step.graph, latencies_ns=[10_000] * len(step.graph.ops))
    rewriting, job = Rewriting(packed=packed), as_packed(job, packed, device)
    budget_nbytes = (vanilla.peak_nbytes(job.graph) + lower_bound_peak_nbytes(job.graph)) // 2
    plan = plan_within(job, rewriting, device, budget_nbytes, 1)
    made = planned_step(step, rewriting, CPU)
    again = [made.graph.ops[op] for event in plan.events if isinstance(event, Recompute) for op in event.ops]
    products = [op for op in again if op.target == "tensile.mul_of_signs.default"]
    assert products
    assert {op.phase for op in products} == {Phase.FORWARD}
    program = lower(made.graph, plan)
    got, results = train_here(make_device(1 << 32), made, state, program, training.batches())
    assert max(result.peak_nbytes for result in results) <= budget_nbytes
    eager, losses = train_eagerly(training)
    assert (differing(got, eager), losses_of(results)) == ([], losses)
