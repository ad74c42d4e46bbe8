"""Iterations taken down as CUDA graphs and replayed: plain eager PyTorch's bits, and accounts that hold."""

import dataclasses

import pytest
import torch

from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.scheduler.lowering import lower
from tensile_db.worker.devices.recording import NotRecorded
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tests.at_once import at_once
from tests.late.runs import Told
from tests.steps.bitwise_runs import (
    SEED,
    as_planned,
    bits_of,
    capture,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
    with_recomputation,
)
from tests.steps.small_networks import training_of, with_schedule

# Where PyTorch has no deterministic kernel it says so; here that is no defect.
pytestmark = pytest.mark.filterwarnings("default")

GIB = 2**30

NETWORKS = [
    ("mlp", "sgd", 0.95),
    ("vgg without resizing", "momentum", 0.7),
    ("vgg without resizing", "adamw", 0.7),
    ("resnet", "momentum", 0.5),
    ("resnet", "adam", 0.6),
    ("vit", "momentum", 0.5),
    ("transformer", "adam", 0.85),
]


def train(device, step, state, program, batches, *, budget_nbytes=2 * GIB, **options):
    """Return the state's bits, the results and what was said of replay."""
    told = Told()
    bits, results = train_here(
        device, step, state, program, batches, budget_nbytes=budget_nbytes, tell=told, **options
    )
    return bits, results, told.said


@pytest.mark.parametrize(("network", "optimizer", "share"), NETWORKS)
@pytest.mark.parametrize("policy", ["tensile", "auto"])
def test_replayed_training_equals_eager_pytorch(gpu, open_gpu, network, optimizer, share, policy):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of(network, optimizer, 8), iterations=8)
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    plan = tight_plan(step, device, share, policy)
    got, results, told = train(
        device, as_planned(step, plan, device), state, plan.program, training.batches()
    )
    assert [what for what, _ in told] == ["replayed"], told
    assert [result.replayed for result in results] == 2 * [False] + 6 * [True]
    assert losses_of(results) == losses
    assert differing(got, want) == []
    assert all(result.peak_nbytes <= 2 * GIB for result in results)


@pytest.mark.parametrize(
    ("optimizer", "share", "scheduled"),
    [
        ("adam", 0.6, False),
        ("adamw", 0.6, False),
        ("sgd", 1.0, True),
        ("momentum", 1.0, True),
        ("adamw", 0.6, True),
    ],
)
def test_an_iteration_whose_numbers_change_is_one_passage(gpu, open_gpu, optimizer, share, scheduled):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of("mlp", optimizer, 8), iterations=8)
    if scheduled:
        training = with_schedule(training)
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    program = tight_plan(step, device, share).program
    got, results, told = train(device, step, state, program, training.batches())
    assert [(what, detail["passages"]) for what, detail in told] == [("replayed", 1)], told
    assert losses_of(results) == losses
    assert differing(got, want) == []


@pytest.mark.parametrize("network", ["vit", "resnet"])
def test_iterations_that_clip_gradients_are_replayed(gpu, open_gpu, network):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of(network, "adamw", 8), iterations=8, max_gradient_norm=0.05)
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    plan = tight_plan(step, device, 0.8)
    got, results, told = train(device, step, state, plan.program, training.batches())
    assert [what for what, _ in told] == ["replayed"], told
    assert losses_of(results) == losses
    assert differing(got, want) == []


def test_recomputations_are_replayed_with_the_rest(gpu, open_gpu):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of("vgg without resizing", "momentum", 8), iterations=6)
    want, _ = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    plan = with_recomputation(step.graph, tight_plan(step, device, 0.8).plan, tensors=3)
    got, results, _ = train(device, step, state, lower(step.graph, plan), training.batches())
    assert results[-1].replayed
    assert differing(got, want) == []


def test_jobs_that_are_captured_while_others_compute_give_what_each_gives_alone(gpu, open_gpu):
    device = open_gpu(memory_nbytes=8 * GIB, replay=True)
    chosen = [("resnet", "momentum"), ("vgg without resizing", "momentum"), ("mlp", "adam"), ("vit", "sgd")]
    jobs = [dataclasses.replace(training_of(*each, 4), iterations=30) for each in chosen]
    wanted = [train_eagerly(training, gpu)[0] for training in jobs]
    captured = [capture(training, gpu) for training in jobs]
    plans = [tight_plan(step, device, 0.7) for step, _ in captured]
    found = {}

    def run(job):
        (step, state), plan = captured[job], plans[job]
        # The last one is run op by op all the time.
        found[job] = train(device, step, state, plan.program, jobs[job].batches(), job=job, replay=job < 3)

    at_once(run, range(len(jobs)))
    for job, want in enumerate(wanted):
        state, results, told = found[job]
        assert differing(state, want) == [], (chosen[job], told)
        assert results[-1].replayed is (job < 3), told


def test_the_driver_gets_back_what_a_recording_held(gpu, open_gpu):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of("resnet", "momentum", 8), iterations=4)
    step, state = capture(training, gpu)
    plan = tight_plan(step, device, 0.7)
    reserved = []
    for _ in range(8):
        _, results, _ = train(device, step, state, plan.program, training.batches())
        assert results[-1].replayed
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    # The first leaves cuBLAS's workspaces; pages of small tensors, of 2 MiB, come and go: fewer than five.
    assert max(reserved[1:]) - min(reserved[1:]) < 10 * 2**20, reserved


def test_what_a_recording_holds_is_charged(gpu, open_gpu):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of("resnet", "momentum", 8), iterations=4)
    step, state = capture(training, gpu)
    plan = tight_plan(step, device, 0.7)
    _, results, ((_, detail),) = train(device, step, state, plan.program, training.batches())
    # Pages, of which the largest have 20 MiB.
    assert detail["held_nbytes"] % (2 * 2**20) == 0
    assert results[-1].peak_nbytes == plan.program.resident_nbytes + detail["held_nbytes"]


@pytest.mark.parametrize("network", ["vit", "resnet"])
def test_what_was_taken_down_is_kept_while_the_job_goes_forward(gpu, open_gpu, network):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of(network, "momentum", 8), iterations=8)
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    forward = capture_forward_step(training.build(), training.shape, device=torch.device(gpu))
    # Parameters that a plan has on the host between iterations would move for a validation.
    plan, validation = (tight_plan(each, device, 1.0, "auto") for each in (step, forward))
    results, logits, recordings = [], [], set()
    with JobMemory(device, job=1, budget_nbytes=2 * GIB, state=state, seed=SEED) as memory:
        trainer = Executor(as_planned(step, plan, device), memory)
        validator = Executor(as_planned(forward, validation, device), memory, replay=False)
        for number, batch in enumerate(training.batches(), start=1):
            trainer.adopt(plan.program)
            results.append(trainer.run_iteration(batch, number))
            validator.adopt(validation.program)
            recordings.add(memory.recorded)
            logits.append([validator.run_iteration(batch[:1]).outputs["logits"] for _ in range(2)])
        # The last one's once more, where nothing is taken down.
        memory.forget_recorded()
        again = validator.run_iteration(batch[:1]).outputs["logits"]
        got = bits_of(trainer.state())
    assert [result.replayed for result in results] == 2 * [False] + 6 * [True]
    assert len(recordings - {None}) == 1
    assert all(torch.equal(first, second) for first, second in logits)
    assert torch.equal(logits[-1][0], again)
    assert losses_of(results) == losses
    assert differing(got, want) == []


def reads(tensor):
    """Have the host wait: the capture is invalid from there on."""
    tensor.sum().item()


def strays(tensor):
    """Give work to a stream that nobody waits for: the capture fails when it ends."""
    stray = torch.cuda.Stream()
    stray.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stray):
        tensor.sum()


@pytest.mark.parametrize("does", [reads, strays])
def test_an_op_that_no_capture_takes_is_run_op_by_op_and_nothing_is_left_of_the_attempt(gpu, open_gpu, does):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of("vgg without resizing", "momentum", 8), iterations=6)
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    calls = list(step.calls)
    place = next(i for i, call in enumerate(calls) if "relu" in str(call.function))
    plain = calls[place].function

    def call(*args, **kwargs):
        does(args[0])
        return plain(*args, **kwargs)

    calls[place] = dataclasses.replace(calls[place], function=call)
    plan = tight_plan(step, device, 0.7)
    changed = dataclasses.replace(step, calls=tuple(calls))
    got, results, told = train(device, changed, state, plan.program, training.batches())
    assert [what for what, _ in told] == ["not_replayed"]
    assert not any(result.replayed for result in results)
    # Dropout went on drawing, though a capture broke off.
    assert differing(got, want) == []
    assert losses_of(results) == losses
    # The allocator serves others again, and another capture works.
    before = torch.cuda.memory_allocated()
    spare = torch.empty(256 * 2**20, dtype=torch.uint8, device=gpu)
    del spare
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before
    got, results, _ = train(device, step, state, plan.program, training.batches())
    assert results[-1].replayed
    assert differing(got, want) == []


def test_a_budget_without_room_is_kept_and_run_op_by_op(gpu, open_gpu):
    device = open_gpu(replay=True)
    training = dataclasses.replace(training_of("resnet", "momentum", 8), iterations=4)
    want, _ = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    plan = tight_plan(step, device, 0.6)
    budget_nbytes = plan.program.guaranteed_peak_nbytes
    got, results, told = train(
        device, step, state, plan.program, training.batches(), budget_nbytes=budget_nbytes
    )
    assert [what for what, _ in told] == ["not_replayed"]
    assert all(result.peak_nbytes <= budget_nbytes for result in results)
    assert differing(got, want) == []


def test_a_device_opened_without_replay_refuses_recordings(open_gpu):
    with pytest.raises(NotRecorded, match="without replay"):
        open_gpu().open_recording()
