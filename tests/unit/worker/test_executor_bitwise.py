"""Captured networks through scheduler and executor, against plain eager PyTorch, bit for bit."""

import itertools
import threading

import pytest
import timm
import torch
from torch import nn

from tensile_db.capture.optimizers import configure
from tensile_db.capture.state import initial_state, model_state
from tensile_db.capture.train_step import capture_train_step
from tensile_db.graph import Phase
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Plan, Recompute, Release
from tensile_db.scheduler.policies.vanilla import plan_one
from tensile_db.scheduler.request import JobRequest
from tensile_db.worker.cpu import CpuDevice
from tensile_db.worker.executor import Executor
from tensile_db.worker.job_memory import JobMemory

ITERATIONS = 3
#: Batch norms followed by relu_ in timm's test_resnet, two ops each.
RECOMPUTED = 16
SEED = 5


def mlp():
    return nn.Sequential(
        nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)
    )


def vgg():
    model = timm.models.vgg.VGG(
        cfg=[8, "M", 16, 16, "M", 32, "M"], num_classes=5, drop_rate=0.5, mlp_ratio=0.02
    )
    assert any(isinstance(module, nn.Dropout) and module.p == 0.5 for module in model.modules())
    return model


NETWORKS = {
    "mlp": (nn.Flatten, mlp),
    "vgg with dropout": (nn.Identity, vgg),
    "resnet": (nn.Identity, lambda: timm.create_model("test_resnet", num_classes=5)),
    "vit": (nn.Identity, lambda: timm.create_model("test_vit", num_classes=5, img_size=32)),
}


def build(network):
    first, rest = NETWORKS[network]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(first(), rest()).train()


def batches(size):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 3, 32, 32, generator=generator), torch.randint(0, 5, (size,), generator=generator))
        for _ in range(ITERATIONS)
    ]


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def train_eager(network, optimizer, size):
    """Return parameters, buffers and optimizer state by their names here, and the losses."""
    model = build(network)
    chosen = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        for features, target in batches(size):
            chosen.zero_grad()
            loss = nn.functional.cross_entropy(model(features), target)
            loss.backward()
            chosen.step()
            losses.append(loss.item())
    state = dict(model_state(model))
    for name, parameter in model.named_parameters():
        for slot, value in chosen.state[parameter].items():
            if isinstance(value, torch.Tensor) and slot != "step":
                state[f"optimizer_state/{name}/{slot}"] = value
    return state, losses


def capture(network, optimizer, size):
    model = build(network)
    config = configure(optimizer, learning_rate=0.01)
    step = capture_train_step(model, batch_shape=(size, 3, 32, 32), target="classes", optimizer=config)
    return step, initial_state(model, config)


def tight_plan(step, device, share):
    """Return a tensile plan whose guaranteed peak is at most `share` of vanilla's."""
    vanilla = lower(step.graph, plan_one(step.graph))
    request = JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=predict_latencies_ns(step.graph, device.spec),
        memory_limit_nbytes=int(share * vanilla.guaranteed_peak_nbytes),
    )
    (plan,) = plan_jobs([request], device.spec)
    return plan


def train_here(device, step, state, program, size, job=1):
    with JobMemory(
        device, job=job, budget_nbytes=program.guaranteed_peak_nbytes, state=state, seed=SEED
    ) as memory:
        executor = Executor(step, memory)
        executor.adopt(program)
        results = [
            executor.run_iteration(batch, iteration) for iteration, batch in enumerate(batches(size), start=1)
        ]
        return executor.state(), results


def differing(got, want):
    assert sorted(got) == sorted(want)
    return [name for name in want if not torch.equal(got[name], want[name])]


@pytest.fixture
def device():
    device = CpuDevice(memory_nbytes=1 << 30, threads=1)
    yield device
    assert device.memory.used_nbytes == 0
    device.close()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("network", "optimizer", "share"),
    [
        ("mlp", "adam", 0.6),
        ("vgg with dropout", "adamw", 0.7),
        ("vgg with dropout", "momentum", 0.7),
        ("resnet", "momentum", 0.5),
        ("resnet", "adam", 0.6),
        ("vit", "adamw", 0.5),
        ("vit", "sgd", 0.5),
    ],
)
def test_training_under_a_tight_budget_equals_eager_pytorch(device, network, optimizer, share):
    step, state = capture(network, optimizer, 8)
    plan = tight_plan(step, device, share)
    got, results = train_here(device, step, state, plan.program, 8)
    want, losses = train_eager(network, optimizer, 8)
    assert differing(got, want) == []
    assert [result.outputs["loss"].item() for result in results] == losses
    assert all(result.swapped_in_nbytes > 0 for result in results)
    assert all(result.peak_nbytes <= plan.program.guaranteed_peak_nbytes for result in results)


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
    step, state = capture("resnet", "momentum", 8)
    program = lower(step.graph, with_recomputed_activations(step.graph))
    vanilla = lower(step.graph, plan_one(step.graph))
    assert program.guaranteed_peak_nbytes < vanilla.guaranteed_peak_nbytes
    got, results = train_here(device, step, state, program, 8)
    want, _ = train_eager("resnet", "momentum", 8)
    assert differing(got, want) == []
    assert [result.recomputed_ops for result in results] == [RECOMPUTED] * 3
    assert [result.peak_nbytes for result in results] == [program.guaranteed_peak_nbytes] * 3


def test_the_measured_peak_is_the_predicted_one_within_two_percent(device):
    step, state = capture("resnet", "adam", 8)
    plan = tight_plan(step, device, 0.6)
    _, results = train_here(device, step, state, plan.program, 8)
    for result in results:
        assert abs(result.peak_nbytes / plan.prediction.peak_nbytes - 1) < 0.02


def test_four_jobs_at_once_give_what_each_gives_alone(device):
    jobs = [("vgg with dropout", "adam"), ("resnet", "momentum"), ("vit", "adamw"), ("mlp", "adam")]
    captured = [capture(network, optimizer, 4) for network, optimizer in jobs]
    plans = [tight_plan(step, device, 0.7) for step, _ in captured]
    device.memory.capacity_nbytes = sum(plan.program.guaranteed_peak_nbytes for plan in plans)
    states = {}

    def run(job):
        (step, state), plan = captured[job], plans[job]
        states[job], _ = train_here(device, step, state, plan.program, 4, job=job)

    threads = [threading.Thread(target=run, args=(job,)) for job in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job, (network, optimizer) in enumerate(jobs):
        want, _ = train_eager(network, optimizer, 4)
        assert differing(states[job], want) == []
    assert device.memory.peak_nbytes <= device.memory.capacity_nbytes


def test_the_account_agrees_with_what_pytorch_really_allocates(device):
    step, state = capture("mlp", "adam", 8)
    program = lower(step.graph, plan_one(step.graph))
    with JobMemory(device, job=1, budget_nbytes=1 << 30, state=state, seed=SEED) as memory:
        executor = Executor(step, memory)
        executor.adopt(program)
        held_nbytes, batch = memory.account.used_nbytes, batches(8)[0]
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
            result = executor.run_iteration(batch, 1)
        events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        events.sort(key=lambda event: event.start_ns())
        totals = list(itertools.accumulate((event.nbytes() for event in events), initial=held_nbytes))
        # Apart from a few bytes: the loss is reported in a tensor on the host.
        assert 0 <= max(totals) - result.peak_nbytes < 64
        assert 0 <= totals[-1] - memory.account.used_nbytes < 64
