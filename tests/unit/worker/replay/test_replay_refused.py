"""What is not taken down, and what is taken down no longer: iterations are run op by op, with equal bits."""

import dataclasses

import pytest
import torch

from tensile_db.capture.step import Scalar
from tensile_db.errors import JobCancelled
from tensile_db.worker.devices.stream_recording import StreamRecording
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.fixed_calls import out_variant
from tensile_db.worker.execution.recording_swapper import RecordingSwapper
from tensile_db.worker.execution.replaying import PAYS_AFTER, SETTLED_AFTER
from tests.late.runs import AMPLE, Told, open_late, small_run
from tests.late.runtime import SCHEDULES
from tests.late.step import late_step
from tests.steps import small_step as s
from tests.steps.small_runs import SEED, assert_equal_states, open_memory, swapping_program, train


def with_function(step, op, make):
    """Return the step with another function for an op; make: takes the late one."""
    calls = list(step.calls)
    calls[op] = dataclasses.replace(calls[op], function=make(calls[op].function))
    return dataclasses.replace(step, calls=tuple(calls))


def run_with(schedule, op, make, iterations=6, budget_nbytes=AMPLE):
    """Train with another function for an op; make: (runtime, late function) -> function."""
    runtime, device = open_late(schedule, can_record=True)
    step, told = s.small_step(), Told()
    late = with_function(late_step(step, runtime), op, lambda function: make(runtime, function))
    with open_memory(device, budget_nbytes) as memory:
        executor = Executor(late, memory, tell=told)
        executor.adopt(swapping_program(step))
        results = train(executor, iterations)
        resident_nbytes = memory.account.used_nbytes
        state = executor.state()
    assert (device.memory.used_nbytes, device.host.used_nbytes, runtime.open_tapes) == (0, 0, [])
    device.close()
    assert resident_nbytes == swapping_program(step).resident_nbytes
    return results, state, told.said


def test_an_op_at_which_the_host_waits_is_not_taken_down(one_thread):
    def make(runtime, function):
        def reads(*args, **kwargs):
            result = function(*args, **kwargs)
            runtime.synchronize(runtime.record(runtime.current.stream))
            return result

        return reads

    results, state, said = run_with("random 1", s.MM2, make)
    assert not any(result.replayed for result in results)
    assert_equal_states(state, s.expected_state(6, SEED))
    ((what, detail),) = said
    assert what == "not_replayed"
    assert "not permitted when stream is capturing" in detail["reason"]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_a_device_that_fails_while_taking_down_goes_on_op_by_op(one_thread, error):
    def make(runtime, function):
        def fails(*args, **kwargs):
            if getattr(runtime.current, "passage", None) is not None:
                raise error("no memory is left")
            return function(*args, **kwargs)

        return fails

    results, state, said = run_with("lazy", s.GW1, make)
    assert not any(result.replayed for result in results)
    assert_equal_states(state, s.expected_state(6, SEED))
    assert [what for what, _ in said] == ["not_replayed"]
    assert "no memory is left" in said[0][1]["reason"]


def test_a_device_that_cannot_say_what_it_holds_gets_all_of_it_back(one_thread, monkeypatch):
    def fails(recording):
        raise RuntimeError("no snapshot")

    monkeypatch.setattr(StreamRecording, "nbytes", property(fails))
    results, state, said = small_run("lazy", swapping_program, 4)
    assert not any(result.replayed for result in results)
    assert_equal_states(state, s.expected_state(4, SEED))
    assert [detail["reason"] for _, detail in said] == ["RuntimeError: no snapshot"]


def test_a_result_has_a_given_place_only_where_the_operator_calls_it_so():
    aten = torch.ops.aten
    assert out_variant(aten.mul.Tensor) is aten.mul.out
    assert out_variant(aten.div.Scalar) is aten.div.Scalar_out
    # Has one, and calls it `grad_input`.
    assert out_variant(aten.gelu_backward.default) is None
    assert out_variant(aten.native_dropout.default) is None


def test_a_result_that_depends_on_a_changing_number_and_has_no_given_place_is_not_taken_down(one_thread):
    runtime, device = open_late("lazy", can_record=True)
    step, told = s.small_step(), Told()
    late = late_step(step, runtime)
    plain, calls = late.calls[s.MM2].function, list(late.calls)
    # A function that is no operator, and so has no `out` variant.
    calls[s.MM2] = dataclasses.replace(
        calls[s.MM2], kwargs={"unused": Scalar(name="rate")}, function=lambda *args, unused: plain(*args)
    )
    with open_memory(device) as memory:
        executor = Executor(dataclasses.replace(late, calls=tuple(calls)), memory, tell=told)
        executor.adopt(s.plain_program(step))
        train(executor, 4)
        assert_equal_states(executor.state(), s.expected_state(4, SEED))
    ((what, detail),) = told.said
    assert what == "not_replayed"
    assert "takes a number that changes" in detail["reason"]
    device.close()


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_where_tensors_cannot_keep_their_places_an_iteration_is_run_op_by_op(one_thread, schedule):
    step = s.small_step()
    budget_nbytes = swapping_program(step).guaranteed_peak_nbytes
    results, state, said = small_run(schedule, swapping_program, 5, budget_nbytes=budget_nbytes)
    assert not any(result.replayed for result in results)
    assert all(result.peak_nbytes <= budget_nbytes for result in results)
    assert_equal_states(state, s.expected_state(5, SEED))
    ((what, detail),) = said
    assert what == "not_replayed"
    assert f"and {budget_nbytes} are there" in detail["reason"]


def test_what_the_allocator_holds_counts_and_not_what_was_asked_for(one_thread):
    results, _, said = small_run("lazy", s.plain_program, 4, budget_nbytes=1 << 16, tape_granule=512)
    (recorded,) = [detail["held_nbytes"] for what, detail in said if what == "replayed"]
    assert recorded % 512 == 0
    resident_nbytes = s.plain_program(s.small_step()).resident_nbytes
    assert [r.peak_nbytes for r in results[-1:]] == [resident_nbytes + recorded]


@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
def test_pieces_so_large_that_there_is_no_room_for_them_are_given_back(one_thread, make):
    # There is room for what is asked for.
    results, state, said = small_run("lazy", make, 4, budget_nbytes=1 << 16, tape_granule=1 << 14)
    assert not any(result.replayed for result in results)
    assert [what for what, _ in said] == ["not_replayed"]
    assert_equal_states(state, s.expected_state(4, SEED))


@pytest.mark.slow
@pytest.mark.parametrize("make", [swapping_program, s.plain_program])
def test_no_budget_is_ever_exceeded_and_what_is_held_is_charged(one_thread, make):
    step = s.small_step()
    program = make(step)
    outcomes = set()
    for budget_nbytes in range(program.guaranteed_peak_nbytes, 3 * program.guaranteed_peak_nbytes, 97):
        runtime, device = open_late("random 2", can_record=True, memory_nbytes=budget_nbytes)
        with open_memory(device, budget_nbytes) as memory:
            executor = Executor(late_step(step, runtime), memory)
            executor.adopt(program)
            results = train(executor, 4)
            device.memory.validate()
            held_nbytes = sum(tape.nbytes for tape in runtime.open_tapes)
            assert memory.account.used_nbytes == program.resident_nbytes + held_nbytes
            assert device.memory.peak_nbytes <= budget_nbytes
            outcomes.add(results[-1].replayed)
            assert_equal_states(executor.state(), s.expected_state(4, SEED))
        device.close()
    assert outcomes == {False, True}


def test_what_is_taken_down_goes_when_others_need_its_memory_and_is_missed_longer_each_time(one_thread):
    runtime, device = open_late("random 1", can_record=True)
    step = s.small_step()
    program = s.plain_program(step)
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(program)
        done, waits = 0, []
        for _ in range(3):
            begun = done
            while not executor.is_replaying:
                done += 1
                train(executor, 1, first=done)
            waits.append(done - begun)
            memory.shrink(program.resident_nbytes)
            assert (memory.account.used_nbytes, runtime.open_tapes) == (program.resident_nbytes, [])
        # One more than were run op by op is the first replay.
        assert waits == [SETTLED_AFTER + 1, 2 * SETTLED_AFTER + 1, 4 * SETTLED_AFTER + 1]
        while not executor.is_replaying:
            done += 1
            train(executor, 1, first=done)
        train(executor, PAYS_AFTER, first=done + 1)
        done += PAYS_AFTER
        memory.shrink(program.resident_nbytes)
        # It has paid: the next one comes at once.
        assert [each.replayed for each in train(executor, 3, first=done + 1)] == 3 * [True]
        assert_equal_states(executor.state(), s.expected_state(done + 3, SEED))
    device.close()


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_state_that_leaves_takes_what_was_taken_down_with_it(one_thread, schedule):
    runtime, device = open_late(schedule, can_record=True)
    step = s.small_step()
    program = swapping_program(step)
    with open_memory(device) as memory:
        memory.state_leaves = True
        executor = Executor(late_step(step, runtime), memory)
        replayed = []
        for first in (1, 6, 11):
            executor.adopt(program)
            replayed.append([each.replayed for each in train(executor, 5, first=first)])
            memory.shrink(0)
            assert (memory.account.used_nbytes, runtime.open_tapes) == (0, [])
        # It went soon the first time, so the next one is longer in coming.
        assert replayed == [2 * [False] + 3 * [True], 4 * [False] + [True], 5 * [False]]
        assert_equal_states(executor.state(), s.expected_state(15, SEED))
    device.close()


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["kernels first", "lazy"])
@pytest.mark.parametrize("parts", range(1, 5))
def test_an_iteration_stopped_halfway_through_its_replay_leaves_nothing_behind(one_thread, schedule, parts):
    runtime, device = open_late(schedule, can_record=True)
    step, left = s.small_step(), []

    def should_stop():
        if left:
            left.pop()
            return not left
        return False

    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory, should_stop=should_stop)
        executor.adopt(swapping_program(step))
        assert train(executor, 4)[-1].replayed
        left.extend([1] * parts)
        with pytest.raises(JobCancelled):
            train(executor, 1, first=5)
    assert (device.memory.used_nbytes, device.host.used_nbytes, runtime.open_tapes) == (0, 0, [])
    device.close()


def test_an_iteration_that_is_not_to_be_replayed_is_not(one_thread):
    runtime, device = open_late("lazy", can_record=True)
    with open_memory(device) as memory:
        executor = Executor(late_step(s.small_step(), runtime), memory, replay=False)
        executor.adopt(s.plain_program(s.small_step()))
        assert not any(result.replayed for result in train(executor, 5))
    device.close()


def test_a_tensor_that_ends_an_iteration_elsewhere_is_noticed_before_anything_is_replayed(
    one_thread, monkeypatch
):
    def lent(self, block):
        self._account.charge(block.nbytes)
        return self._recording.allocate(block.nbytes)

    # As if places were not kept.
    monkeypatch.setattr(RecordingSwapper, "_acquire_device", lent)
    results, state, said = small_run("random 1", swapping_program, 5)
    assert not any(result.replayed for result in results)
    assert_equal_states(state, s.expected_state(5, SEED))
    assert [detail["reason"] for _, detail in said] == [
        "parameter/w1 does not end an iteration where it begins it"
    ]
