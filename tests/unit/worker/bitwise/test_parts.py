"""Optimizer state in parts: the same bits, and the same names outside of the step."""

import pytest
import torch
from torch import nn

from tensile_db.capture import parts
from tensile_db.capture.optimizers import configure
from tensile_db.capture.state import initial_state
from tensile_db.capture.step import View
from tensile_db.capture.train_step import capture_train_step
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies.vanilla import plan_one
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory

ITERATIONS = 4


def network():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(37, 61), nn.ReLU(), nn.Linear(61, 53), nn.ReLU(), nn.Linear(53, 5))
        # Dense, but not in the order of its dimensions.
        model[2].weight = nn.Parameter(model[2].weight.detach().t().contiguous().t())
        return model


def batches():
    generator = torch.Generator().manual_seed(4)
    return [
        (torch.randn(6, 37, generator=generator), torch.randint(0, 5, (6,), generator=generator))
        for _ in range(ITERATIONS)
    ]


def capture(optimizer):
    return capture_train_step(
        network(), batch_shape=(6, 37), target="classes", optimizer=configure(optimizer, learning_rate=0.01)
    )


def train(step, state, iterations):
    device = CpuDevice(memory_nbytes=1 << 24, threads=1)
    with JobMemory(device, job=1, budget_nbytes=1 << 24, state=state, seed=0) as memory:
        executor = Executor(step, memory)
        executor.adopt(lower(step.graph, plan_one(step.graph)))
        for iteration in iterations:
            executor.run_iteration(batches()[iteration - 1], iteration)
        trained = executor.state()
    device.close()
    return trained


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
def test_training_in_parts_gives_the_same_bits_under_the_same_names(monkeypatch, optimizer):
    first = initial_state(network(), configure(optimizer))
    whole = train(capture(optimizer), first, range(1, ITERATIONS + 1))
    monkeypatch.setattr(parts, "PART_NBYTES", 1000)
    step = capture(optimizer)
    # 61 x 37 and 53 x 61 floats in parts of 250; 5 x 53 would be less than two.
    assert len([name for name in step.state if "/0.weight/" in name]) == 10 * len(first_slots(optimizer))
    assert len([name for name in step.state if "/2.weight/" in name]) == 13 * len(first_slots(optimizer))
    assert len([name for name in step.state if "/4.weight/" in name]) == len(first_slots(optimizer))
    half = train(step, first, range(1, 3))
    assert half.keys() == first.keys()
    resumed = train(step, half, range(3, ITERATIONS + 1))
    assert resumed.keys() == whole.keys()
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


def first_slots(optimizer):
    return ("momentum_buffer",) if optimizer == "momentum" else ("exp_avg", "exp_avg_sq")


def test_no_op_of_an_update_holds_more_than_a_part_beside_parameter_and_gradient(monkeypatch):
    monkeypatch.setattr(parts, "PART_NBYTES", 1000)
    graph = capture("adam").graph
    for op in graph.ops:
        if op.phase == "optimizer":
            touched = [graph.tensors[tensor] for tensor in {*op.reads, *op.writes}]
            assert {tensor.role for tensor in touched if tensor.nbytes >= 2000} <= {"parameter", "gradient"}


def test_names_of_parts_are_read_back_and_others_left_alone():
    name = parts.Part(begin=250, end=500).name("optimizer_state/a.b/exp_avg")
    assert name == "optimizer_state/a.b/exp_avg[250:500]"
    assert parts.split_name(name) == ("optimizer_state/a.b/exp_avg", parts.Part(begin=250, end=500))
    assert parts.split_name("parameter/odd[1:2]") == ("parameter/odd[1:2]", None)
    assert parts.parameter_of("optimizer_state/a.b/exp_avg") == "parameter/a.b"


def test_the_last_part_is_the_rest(monkeypatch):
    monkeypatch.setattr(parts, "PART_NBYTES", 40)
    view = View(tensor=0, dtype=torch.float32, size=(5, 5), stride=(5, 1), offset=0)
    assert [(part.begin, part.end) for part in parts.parts_of(view)] == [(0, 10), (10, 20), (20, 25)]
