"""Iterations taken down and replayed, on a device that puts everything off: eager's bits, exact accounts."""

import dataclasses

import pytest
import torch

from tensile_db.scheduler.lowering import lower
from tensile_db.worker.devices.stream_recording import RecordedCopy, StreamRecording
from tensile_db.worker.execution.executor import Executor
from tests.at_once import at_once
from tests.late.runs import AMPLE, copy_at_once, open_late, small_run
from tests.late.runtime import SCHEDULES
from tests.late.step import late_step
from tests.steps import small_step as s
from tests.steps.bitwise_runs import (
    capture_once,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
    with_recomputation,
)
from tests.steps.small_networks import training_of
from tests.steps.small_runs import SEED as SMALL_SEED
from tests.steps.small_runs import assert_equal_states, open_memory, swapping_program, train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
def test_replayed_iterations_give_plain_pytorchs_values(one_thread, schedule, make):
    results, state, said = small_run(schedule, make, 8)
    assert [result.replayed for result in results] == [False, False] + 6 * [True]
    assert_equal_states(state, s.expected_state(8, SMALL_SEED))
    assert [what for what, _ in said] == ["replayed"]
    assert len({result.swapped_in_nbytes for result in results[1:]}) == 1


@pytest.mark.parametrize(
    ("network", "optimizer", "share", "schedule"),
    [
        *(("vgg with dropout", "momentum", 0.7, schedule) for schedule in SCHEDULES),
        ("mlp", "adam", 0.6, "copies first"),
        ("lstm", "adam", 0.9, "random 1"),
        ("norm first", "adam", 0.8, "lazy"),
        pytest.param("vgg with dropout", "adamw", 0.7, "lazy", marks=pytest.mark.thorough),
        pytest.param("resnet", "momentum", 0.5, "lazy", marks=pytest.mark.slow),
        pytest.param("resnet", "adam", 0.6, "random 2", marks=pytest.mark.thorough),
        pytest.param("vit", "adamw", 0.5, "random 1", marks=pytest.mark.slow),
        *(pytest.param("resnet", "sgd", 0.6, schedule, marks=pytest.mark.thorough) for schedule in SCHEDULES),
    ],
)
def test_replayed_training_equals_eager_pytorch(one_thread, network, optimizer, share, schedule):
    training = dataclasses.replace(training_of(network, optimizer, 4), iterations=6)
    runtime, device = open_late(schedule, can_record=True)
    step, state = capture_once(training)
    program = tight_plan(step, device, share).program
    got, results = train_here(
        device, late_step(step, runtime), state, program, training.batches(), budget_nbytes=AMPLE
    )
    want, losses = train_eagerly(training)
    assert differing(got, want) == []
    assert losses_of(results) == losses
    assert [result.replayed for result in results] == [False, False, True, True, True, True]
    assert all(result.swapped_in_nbytes > 0 for result in results)
    device.close()


def test_replayed_training_with_recomputations_equals_eager_pytorch(one_thread):
    training = dataclasses.replace(training_of("vgg with dropout", "momentum", 4), iterations=5)
    runtime, device = open_late("random 1", can_record=True)
    step, state = capture_once(training)
    plan = with_recomputation(step.graph, tight_plan(step, device, 0.8).plan, tensors=3)
    program = lower(step.graph, plan)
    got, results = train_here(
        device, late_step(step, runtime), state, program, training.batches(), budget_nbytes=AMPLE
    )
    assert results[-1].replayed
    assert results[-1].recomputed_ops > 0
    assert differing(got, train_eagerly(training)[0]) == []
    device.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_new_plan_is_run_op_by_op_and_then_replayed_in_turn(one_thread, schedule):
    runtime, device = open_late(schedule, can_record=True)
    step = s.small_step()
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        results = []
        for begin, make in ((1, s.plain_program), (5, swapping_program), (9, s.plain_program)):
            executor.adopt(make(step))
            assert len(runtime.open_tapes) == 0
            results += train(executor, 4, first=begin)
            assert len(runtime.open_tapes) == 1
        assert [result.replayed for result in results] == 3 * [False, False, True, True]
        # Each by its own program.
        swaps = [result.swapped_out_nbytes > 0 for result in results]
        assert swaps == 4 * [False] + 4 * [True] + 4 * [False]
        assert_equal_states(executor.state(), s.expected_state(12, SMALL_SEED))
    device.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_paused_job_goes_on_elsewhere_with_the_bits_of_one_that_was_not(one_thread, schedule):
    step = s.small_step()
    state = random_state = None
    for first in (1, 6):
        runtime, device = open_late(schedule, can_record=True)
        with open_memory(device, state=state) as memory:
            if random_state is not None:
                memory.set_random_state(random_state)
            executor = Executor(late_step(step, runtime), memory)
            executor.adopt(swapping_program(step))
            assert train(executor, 5, first=first)[-1].replayed
            state, random_state = executor.state(), memory.random_state()
        assert (device.memory.used_nbytes, runtime.open_tapes) == (0, [])
        device.close()
    assert_equal_states(state, s.expected_state(10, SMALL_SEED))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_validation_in_between_sees_the_trained_weights_and_changes_nothing(one_thread, schedule):
    runtime, device = open_late(schedule, can_record=True)
    step, forward = s.small_step(), s.small_forward()
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        validating = Executor(late_step(forward, runtime), memory)
        for first in (1, 5):
            executor.adopt(swapping_program(step))
            train(executor, 4, first=first)
            validating.adopt(s.plain_program(forward))
            (x,) = s.small_batch(99)
            logits = [validating.run_iteration([x]).outputs["logits"] for _ in range(4)]
            # A job has one recording at a time.
            assert len(runtime.open_tapes) == 1
            want = s.expected_state(first + 3, SMALL_SEED)
            expected = x @ want["parameter/w1"] @ want["parameter/w2"]
            assert [torch.equal(each, expected) for each in logits] == 4 * [True]
        assert_equal_states(executor.state(), s.expected_state(8, SMALL_SEED))
    device.close()


@pytest.mark.parametrize("budget", ["ample", "tight"])
def test_sampled_iterations_are_run_op_by_op_and_the_others_replayed(one_thread, budget):
    runtime, device = open_late("random 2", can_record=True)
    step = s.small_step()
    program = s.plain_program(step)
    # Room for what is taken down, in pieces of each size, and not for an iteration beside it.
    budget_nbytes = AMPLE if budget == "ample" else int(1.5 * program.guaranteed_peak_nbytes)
    tapes = []
    with open_memory(device, budget_nbytes) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(program)
        results = []
        for number in range(1, 10):
            sampled = number in (5, 8)
            results.append(executor.run_iteration(s.small_batch(number), number, sample_latencies=sampled))
            tapes.append(len(runtime.open_tapes))
        assert_equal_states(executor.state(), s.expected_state(9, SMALL_SEED))
    assert [result.replayed for result in results] == [n not in (1, 2, 5, 8) for n in range(1, 10)]
    assert [result.latencies_ns is not None for result in results] == [n in (5, 8) for n in range(1, 10)]
    # Without room for both, the recording goes and comes again.
    away = 1 if budget == "ample" else 0
    assert tapes == [0, 0, 1, 1, away, 1, 1, away, 1]
    assert all(result.peak_nbytes <= budget_nbytes for result in results)
    device.close()


@pytest.mark.parametrize("schedule", ["random 1", "lazy", "kernels first"])
def test_jobs_that_draw_and_replay_beside_each_other_give_what_each_gives_alone(one_thread, schedule):
    jobs = [
        dataclasses.replace(training_of(network, optimizer, 4), iterations=5)
        for network, optimizer in (("vgg with dropout", "momentum"), ("mlp", "adam"), ("resnet", "sgd"))
    ]
    captured = [capture_once(training) for training in jobs]
    runtime, device = open_late(schedule, can_record=True)
    plans = [tight_plan(step, device, 0.7) for step, _ in captured]
    states, replayed = {}, {}

    def run(job):
        torch.set_num_threads(1)
        (step, state), plan = captured[job], plans[job]
        states[job], results = train_here(
            device,
            late_step(step, runtime),
            state,
            plan.program,
            jobs[job].batches(),
            job=job,
            budget_nbytes=AMPLE,
            # The last one is run op by op beside the others' replays.
            replay=job < 2,
        )
        replayed[job] = [result.replayed for result in results]

    at_once(run, range(len(jobs)))
    assert [sum(replayed[job]) for job in range(3)] == [3, 3, 0]
    for job, training in enumerate(jobs):
        assert differing(states[job], train_eagerly(training)[0]) == []
    device.close()


FORGETFUL = {
    "copies wait for no kernel": (RecordedCopy, "__init__", copy_at_once),
    "random numbers begin anew": (
        StreamRecording,
        "replay",
        lambda self, passage, _: self._tape.replay(passage, self._streams.compute),
    ),
}


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_recording_that_forgets_a_hand_over_is_found_out(one_thread, monkeypatch, name):
    monkeypatch.setattr(*FORGETFUL[name])
    want = s.expected_state(6, SMALL_SEED)
    found = []
    for schedule in SCHEDULES:
        _, state, _ = small_run(schedule, swapping_program, 6)
        found += [name for name in want if not torch.equal(state[name], want[name])]
    assert found
