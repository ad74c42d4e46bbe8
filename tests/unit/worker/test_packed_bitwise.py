"""Steps with tensors kept as codes, through the executor: eager PyTorch's bits, with less memory held."""

import pytest
import torch

from tensile_db.capture.packed_step import planned_step
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.packing.packed_graph import packable
from tensile_db.scheduler.plan import Rewriting
from tensile_db.scheduler.policies import vanilla
from tests.bitwise_runs import capture, differing, losses_of, train_eagerly, train_here
from tests.unit.worker.test_executor_bitwise import training_of

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
