"""The asynchronous device without a GPU: whatever runs late, in whatever order, the bits stay."""

import pytest
import torch

from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.stream_copy import StreamCopy
from tensile_db.worker.execution import executor as executor_module
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.swapper import Swapper
from tests.at_once import at_once
from tests.late.runs import copy_at_once, open_late
from tests.late.runtime import POISON, SCHEDULES, LateRuntime
from tests.late.step import late_step
from tests.steps import small_step as s
from tests.steps.bitwise_runs import capture_once, differing, losses_of, tight_plan, train_eagerly, train_here
from tests.steps.small_networks import training_of
from tests.steps.small_runs import SEED, assert_equal_states, open_memory, persistent, swapping_program, train


def train_late(schedule, training, *, share):
    runtime, device = open_late(schedule)
    step, state = capture_once(training)
    plan = tight_plan(step, device, share)
    got, results = train_here(device, late_step(step, runtime), state, plan.program, training.batches())
    assert device.memory.used_nbytes == 0
    device.close()
    return got, results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "optimizer", "share", "schedule"),
    [
        *(("vgg with dropout", "adamw", 0.7, schedule) for schedule in SCHEDULES),
        ("mlp", "adam", 0.6, "copies first"),
        pytest.param("resnet", "momentum", 0.5, "lazy", marks=pytest.mark.thorough),
        pytest.param("vit", "adamw", 0.5, "random 1", marks=pytest.mark.slow),
        *(
            pytest.param("resnet", "adam", 0.6, schedule, marks=pytest.mark.thorough)
            for schedule in SCHEDULES
        ),
        *(pytest.param("vit", "sgd", 0.5, schedule, marks=pytest.mark.thorough) for schedule in SCHEDULES),
    ],
)
def test_training_that_runs_late_equals_eager_pytorch(one_thread, network, optimizer, share, schedule):
    training = training_of(network, optimizer, 8)
    got, results = train_late(schedule, training, share=share)
    want, losses = train_eagerly(training)
    assert differing(got, want) == []
    assert losses_of(results) == losses
    assert all(result.swapped_in_nbytes > 0 for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
def test_a_programs_values_are_plain_pytorchs_also_between_programs(one_thread, schedule, make):
    runtime, device = open_late(schedule)
    step = s.small_step()
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(make(step))
        train(executor, 2)
        assert_equal_states(executor.state(), s.expected_state(2, SEED))
        executor.adopt(s.plain_program(step))
        train(executor, 1, first=3)
        executor.adopt(swapping_program(step))
        train(executor, 1, first=4)
        assert_equal_states(executor.state(), s.expected_state(4, SEED))
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)
    device.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("can_record", "options", "held_back"),
    [
        (True, {}, True),
        (True, {"replay": False}, False),
        (False, {}, False),
        (True, {"replay": False, "kernels_alone": True}, True),
        (False, {"kernels_alone": True}, True),
        (True, {"kernels_alone": False}, False),
    ],
)
def test_the_device_is_held_back_for_latencies_where_iterations_are_replayed_or_it_is_asked_for(
    one_thread, monkeypatch, can_record, options, held_back
):
    # Two instructions at a time.
    monkeypatch.setattr(executor_module, "_HANDED_OVER", 2)
    runtime, device = open_late("lazy", can_record=can_record)
    step = s.small_step()
    program = swapping_program(step)
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory, **options)
        executor.adopt(program)
        executor.run_iteration(s.small_batch(1), 1)
        assert runtime.held_back_ns == []
        executor.run_iteration(s.small_batch(2), 2, sample_latencies=True)
        executor.close()
    pieces = -(-len(program.instructions) // 2)
    assert len(runtime.held_back_ns) == (pieces if held_back else 0)
    assert all(0 < each <= executor_module._LONGEST_HOLD_NS for each in runtime.held_back_ns)
    device.close()


def test_the_host_waits_for_nothing_within_an_iteration(one_thread):
    runtime, device = open_late("lazy")
    step, waits = s.small_step(), []

    def should_stop():
        waits.append(runtime.host_waits)
        return False

    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory, should_stop=should_stop)
        executor.adopt(swapping_program(step))
        waits.clear()
        executor.run_iteration(s.small_batch(1), 1, sample_latencies=True)
        assert len(waits) > len(step.graph.ops)
        assert len(set(waits)) == 1
        assert runtime.host_waits > waits[-1]
    device.close()


FORGETFUL = {
    "kernels wait for no copy": (StreamCopy, "wait", lambda self: None),
    "copies wait for no kernel": (StreamCopy, "__init__", copy_at_once),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGETFUL)
def test_a_device_that_forgets_a_hand_over_is_found_out(one_thread, monkeypatch, name):
    monkeypatch.setattr(*FORGETFUL[name])
    training = training_of("vgg with dropout", "adamw", 8)
    want, _ = train_eagerly(training)
    found = [differing(train_late(schedule, training, share=0.6)[0], want) for schedule in SCHEDULES[:3]]
    assert any(found)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_state_on_its_way_to_the_host_is_waited_for(one_thread, schedule):
    runtime, device = open_late(schedule)
    step = s.small_step()
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(s.plain_program(step))
        train(executor, 2)
        # As an iteration's last swaps go.
        for block in persistent(memory, step):
            memory.swapper.copy_out(block)
            memory.swapper.settle(block)
        assert_equal_states(executor.state(), s.expected_state(2, SEED))
    device.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_that_kernels_come_after_is_there_when_the_device_has_finished(schedule):
    runtime, device = open_late(schedule)
    with device.computing():
        storage = device.allocate(1000)
        runtime.launch(lambda tensor: tensor.fill_(7), torch.empty(0, dtype=torch.uint8).set_(storage))
    buffer = device.host.acquire(1000)
    copy = device.copy_out(1, storage, buffer, 0)
    copy.wait()
    device.finish()
    assert bytes(buffer) == b"\x07" * 1000
    device.host.release(buffer)
    del storage
    device.close()


def test_kernels_wait_for_a_copy_that_is_under_way_and_not_for_one_that_has_ended(monkeypatch):
    runtime, device = open_late("lazy")
    swapper = Swapper(device, device.memory.open_account(1, 2000))
    waited = []
    wait = runtime.wait
    monkeypatch.setattr(runtime, "wait", lambda *what: (waited.append(what), wait(*what)))
    with device.computing():
        for ends in (False, True):
            block = Block(name="a", nbytes=1000, persistent=True)
            block.host = device.host.acquire(1000)
            swapper.copy_in(block)
            if ends:
                block.copy.finish()
            assert block.copy.has_ended() is ends
            waited.clear()
            swapper.settle(block)
            assert len(waited) == (0 if ends else 1)
            swapper.drop(block)
    device.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_job_that_comes_writes_no_buffer_that_a_copy_of_another_job_still_reads(one_thread, schedule):
    runtime, device = open_late(schedule)
    step = s.small_step()
    others = {name: torch.full_like(value, 5) for name, value in s.small_state().items()}
    with open_memory(device, job=1) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(s.plain_program(step))
        memory.shrink(0)
        # As in an iteration that writes what has come back.
        for block in persistent(memory, step):
            memory.swapper.copy_in(block)
            memory.swapper.settle(block)
            memory.swapper.drop_host(block)
        with open_memory(device, job=2, state=others) as beside:
            Executor(late_step(step, runtime), beside)
            assert_equal_states(executor.state(), s.small_state())
    device.close()


def test_a_copy_given_up_has_let_go_of_both_sides():
    _, device = open_late("lazy")
    storage, buffer = device.allocate(1000), device.host.acquire(1000)
    copy = device.copy_in(1, buffer, storage, 0)
    copy.cancel()
    assert bytes(storage) == bytes(buffer)
    device.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_link_that_serves_one_direction_at_a_time_gives_the_same_bits(one_thread, schedule):
    runtime, device = open_late(schedule, duplex=False)
    step = s.small_step()
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(swapping_program(step))
        train(executor, 3)
        assert_equal_states(executor.state(), s.expected_state(3, SEED))
    device.close()


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["lazy", "random 2"])
def test_jobs_at_once_live_off_each_others_memory_and_give_what_each_gives_alone(one_thread, schedule):
    chosen = [("vgg with dropout", "adamw"), ("resnet", "momentum"), ("mlp", "adam")]
    jobs = [training_of(network, optimizer, 8) for network, optimizer in chosen]
    captured = [capture_once(training) for training in jobs]
    runtime, device = open_late(schedule)
    plans = [tight_plan(step, device, 0.7) for step, _ in captured]
    states = {}

    def run(job):
        # Kernels run in whichever thread waits for them; this number is a thread's own.
        torch.set_num_threads(1)
        (step, state), plan = captured[job], plans[job]
        late = late_step(step, runtime)
        states[job], _ = train_here(device, late, state, plan.program, jobs[job].batches(), job=job)

    at_once(run, range(len(jobs)))
    for job, training in enumerate(jobs):
        want, _ = train_eagerly(training)
        assert differing(states[job], want) == []
    device.close()


def test_what_is_let_go_of_within_a_kernel_is_overwritten_after_it():
    # As where a garbage collection begins in it.
    runtime = LateRuntime("kernels first")
    stream, seen = runtime.new_stream(), []
    with runtime.on(stream):
        held = [runtime.allocate(1)]
        byte = torch.empty(0, dtype=torch.uint8).set_(runtime.at(held[0]), 0, (1,))
        byte.fill_(7)

        def kernel():
            held.clear()
            seen.append(byte.item())

        runtime.launch(kernel)
    assert seen == [7]
    assert byte.item() == POISON
