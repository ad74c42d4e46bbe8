"""Captured networks through scheduler and executor, against plain eager PyTorch, bit for bit.

Small networks; the real ones are in tests/e2e/test_networks_bitwise.py.
"""

import itertools

import pytest
import torch

from tensile_db.graph import Phase
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Plan, Recompute, Release
from tensile_db.scheduler.policies.vanilla import plan_one
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tests.at_once import at_once
from tests.steps.bitwise_runs import (
    SEED,
    capture_once,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
    vanilla_peak_nbytes,
    with_recomputation,
)
from tests.steps.small_networks import training_of, with_channels_last

pytestmark = pytest.mark.slow

#: Batch norms followed by relu_ in timm's test_resnet, two ops each.
RECOMPUTED = 16


@pytest.fixture
def device(make_device):
    return make_device(1 << 30)


@pytest.mark.parametrize(
    ("network", "optimizer", "share"),
    [
        ("mlp", "adam", 0.6),
        ("transformer", "adam", 0.85),
        ("vgg with dropout", "adamw", 0.7),
        ("vgg with dropout", "momentum", 0.7),
        ("resnet", "momentum", 0.5),
        ("lstm", "adam", 0.9),
        ("norm first", "adam", 0.8),
        ("checkpointed", "adam", 0.8),
        pytest.param("resnet", "adam", 0.6, marks=pytest.mark.slow),
        pytest.param("vit", "adamw", 0.5, marks=pytest.mark.slow),
        pytest.param("vit", "sgd", 0.5, marks=pytest.mark.thorough),
    ],
)
def test_training_under_a_tight_budget_equals_eager_pytorch(device, network, optimizer, share):
    training = training_of(network, optimizer, 8)
    step, state = capture_once(training)
    plan = tight_plan(step, device, share)
    got, results = train_here(device, step, state, plan.program, training.batches())
    want, losses = train_eagerly(training)
    assert differing(got, want) == []
    assert losses_of(results) == losses
    assert all(result.swapped_in_nbytes > 0 for result in results)
    assert all(result.peak_nbytes <= plan.program.guaranteed_peak_nbytes for result in results)


@pytest.mark.parametrize(
    ("network", "share"), [("vgg with dropout", 0.7), pytest.param("resnet", 0.5, marks=pytest.mark.thorough)]
)
def test_training_with_channels_last_equals_eager_pytorch(device, network, share):
    training = with_channels_last(training_of(network, "momentum", 8))
    step, state = capture_once(training)
    weights = [value for name, value in state.items() if name.startswith("parameter/") and value.dim() == 4]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    assert not all(weight.is_contiguous() for weight in weights)
    plan = tight_plan(step, device, share)
    got, results = train_here(device, step, state, plan.program, training.batches())
    want, losses = train_eagerly(training)
    assert (differing(got, want), losses_of(results)) == ([], losses)
    usual, _ = train_eagerly(training_of(network, "momentum", 8))
    assert differing(got, usual)


def with_recomputed_activations(graph):
    """Return vanilla's plan, each batch norm and relu_ after it run again for the backward pass."""
    plan = plan_one(graph)
    events = list(plan.events)
    for norm, relu in itertools.pairwise(graph.ops):
        if (norm.target, relu.target) != ("aten.native_batch_norm.default", "aten.relu_.default"):
            continue
        (tensor,) = relu.writes
        forward = [op.id for op in graph.ops if tensor in op.reads and op.phase is Phase.FORWARD]
        backward = [op.id for op in graph.ops if tensor in op.reads and op.phase is Phase.BACKWARD]
        events.append(Release(tensor=tensor, after_op=forward[-1]))
        events.append(Recompute(tensor=tensor, before_op=backward[0], ops=(norm.id, relu.id)))
    return Plan(policy="recomputing", order=plan.order, events=tuple(events))


def test_recomputation_equals_eager_pytorch_batch_norm_and_in_place_relu_included(device):
    training = training_of("resnet", "momentum", 8)
    step, state = capture_once(training)
    program = lower(step.graph, with_recomputed_activations(step.graph))
    assert program.guaranteed_peak_nbytes < vanilla_peak_nbytes(step.graph)
    got, results = train_here(device, step, state, program, training.batches())
    want, _ = train_eagerly(training)
    assert differing(got, want) == []
    assert [result.recomputed_ops for result in results] == [RECOMPUTED] * 3
    assert [result.peak_nbytes for result in results] == [program.guaranteed_peak_nbytes] * 3


@pytest.mark.parametrize("network", ["lstm", "norm first"])
def test_recomputation_equals_eager_pytorch_of_lstms_and_of_norms_of_images(device, network):
    training = training_of(network, "adam", 8)
    step, state = capture_once(training)
    plan = with_recomputation(step.graph, plan_one(step.graph), tensors=2)
    got, results = train_here(device, step, state, lower(step.graph, plan), training.batches())
    want, losses = train_eagerly(training)
    assert (differing(got, want), losses_of(results)) == ([], losses)
    assert all(result.recomputed_ops >= 2 for result in results)


def test_the_measured_peak_is_the_predicted_one_within_two_percent(device):
    training = training_of("resnet", "adam", 8)
    step, state = capture_once(training)
    plan = tight_plan(step, device, 0.6)
    _, results = train_here(device, step, state, plan.program, training.batches())
    for result in results:
        assert abs(result.peak_nbytes / plan.prediction.peak_nbytes - 1) < 0.02


def test_four_jobs_at_once_give_what_each_gives_alone(device):
    chosen = [("vgg with dropout", "adamw"), ("resnet", "momentum"), ("vit", "adamw"), ("mlp", "adam")]
    jobs = [training_of(network, optimizer, 8) for network, optimizer in chosen]
    captured = [capture_once(training) for training in jobs]
    plans = [tight_plan(step, device, 0.7) for step, _ in captured]
    device.memory.capacity_nbytes = sum(plan.program.guaranteed_peak_nbytes for plan in plans)
    states = {}

    def run(job):
        (step, state), plan = captured[job], plans[job]
        states[job], _ = train_here(device, step, state, plan.program, jobs[job].batches(), job=job)

    at_once(run, range(4))
    for job, training in enumerate(jobs):
        want, _ = train_eagerly(training)
        assert differing(states[job], want) == []
    assert device.memory.peak_nbytes <= device.memory.capacity_nbytes


def test_the_account_agrees_with_what_pytorch_really_allocates(device):
    training = training_of("mlp", "adam", 8)
    step, state = capture_once(training)
    program = lower(step.graph, plan_one(step.graph))
    with JobMemory(device, job=1, budget_nbytes=1 << 30, state=state, seed=SEED) as memory:
        executor = Executor(step, memory)
        executor.adopt(program)
        held_nbytes, batch = memory.account.used_nbytes, training.batches()[0]
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
            result = executor.run_iteration(batch, 1)
        events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        events.sort(key=lambda event: event.start_ns())
        totals = list(itertools.accumulate((event.nbytes() for event in events), initial=held_nbytes))
        # Apart from a few bytes: the loss is reported in a tensor on the host.
        assert 0 <= max(totals) - result.peak_nbytes < 64
        assert 0 <= totals[-1] - memory.account.used_nbytes < 64
