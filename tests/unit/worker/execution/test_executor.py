import dataclasses

import pytest
import torch

from tensile_db.errors import DeviceOutOfMemory
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import Executor
from tests.at_once import at_once
from tests.played.fake_device import FakeDevice
from tests.steps import small_step as s
from tests.steps.small_runs import SEED, assert_equal_states, open_memory, swapping_program, train


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def step():
    return s.small_step()


def recomputing_program(step):
    """H is freed after the dropout and made again, relu_ and all, where the backward pass reads it."""
    instructions = s.plain_instructions(step)
    instructions.insert(instructions.index(Compute(op=s.MM2)), Free(tensor=s.H))
    at = instructions.index(Compute(op=s.GRELU))
    instructions[at:at] = [Compute(op=s.MM1, recompute=True), Compute(op=s.RELU, recompute=True)]
    return s.program(step, instructions)


PROGRAMS = [s.plain_program, swapping_program, recomputing_program]


@pytest.mark.parametrize("make", PROGRAMS)
def test_every_program_gives_what_plain_pytorch_gives_bit_for_bit(device, step, make):
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(make(step))
        train(executor, 3)
        assert_equal_states(executor.state(), s.expected_state(3, SEED))


@pytest.mark.parametrize("make", PROGRAMS)
def test_the_budget_of_the_guaranteed_peak_suffices_and_a_byte_less_is_refused(device, step, make):
    program = make(step)
    with open_memory(device, budget_nbytes=program.guaranteed_peak_nbytes) as memory:
        executor = Executor(step, memory)
        executor.adopt(program)
        results = train(executor, 2)
        assert [result.peak_nbytes for result in results] == [program.guaranteed_peak_nbytes] * 2
    with open_memory(device, budget_nbytes=program.guaranteed_peak_nbytes - 1) as memory:
        executor = Executor(step, memory)
        executor.adopt(program)
        with pytest.raises(DeviceOutOfMemory):
            train(executor, 1)


def test_an_op_that_does_not_fit_is_refused_before_it_runs(device, step):
    ran = []

    def spy(*args):
        ran.append(args)
        return torch.mm(*args)

    calls = list(step.calls)
    calls[s.MM1] = dataclasses.replace(calls[s.MM1], function=spy)
    step = dataclasses.replace(step, calls=tuple(calls))
    persistent_nbytes = (8 * 16 + 16 * 3 + 8 * 16) * 4
    batch_nbytes = 4 * 8 * 4
    with open_memory(device, budget_nbytes=persistent_nbytes + batch_nbytes + 255) as memory:
        executor = Executor(step, memory)
        executor.adopt(s.plain_program(step))
        with pytest.raises(DeviceOutOfMemory) as refusal:
            train(executor, 1)
        assert refusal.value.wanted_nbytes == 4 * 16 * 4
        assert refusal.value.used_nbytes == persistent_nbytes + batch_nbytes
        assert ran == []


def test_the_result_tells_what_the_iteration_took(device, step):
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(swapping_program(step))
        first, second = train(executor, 2)
        w1, h, m1 = 8 * 16 * 4, 4 * 16 * 4, 8 * 16 * 4
        # The host still has w1 from the start; each op that updates it makes that copy worthless.
        assert (first.swapped_out_nbytes, first.swapped_in_nbytes) == (h + m1, h + m1 + w1)
        assert (second.swapped_out_nbytes, second.swapped_in_nbytes) == (w1 + h + m1, h + m1 + w1)
        assert first.outputs["loss"].shape == ()
        assert second.latencies_ns is None
        # Kernels take no time on this device, so all of it is stalls.
        assert second.elapsed_ns == second.stall_ns > 0
        executor.adopt(recomputing_program(step))
        assert train(executor, 1)[0].recomputed_ops == 2


def test_latencies_are_those_of_each_ops_first_run(device, step):
    def slow(nanoseconds, function):
        def run(*args):
            device.now_ns += nanoseconds
            return function(*args)

        return run

    calls = list(step.calls)
    for op, nanoseconds in ((s.MM1, 700), (s.RELU, 20)):
        calls[op] = dataclasses.replace(calls[op], function=slow(nanoseconds, calls[op].function))
    step = dataclasses.replace(step, calls=tuple(calls))
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(recomputing_program(step))
        result = executor.run_iteration(s.small_batch(1), 1, sample_latencies=True)
        assert result.latencies_ns == (0, 700, 20, *[0] * 13)
        # What marks take is no op's.
        device.mark_ns = 30
        again = executor.run_iteration(s.small_batch(2), 2, sample_latencies=True)
        assert again.latencies_ns == (0, 670, *[0] * 14)
        assert result.elapsed_ns == 1440


def test_a_new_program_is_taken_up_between_iterations_without_a_trace_in_the_values(device, step):
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        for number, make in enumerate([*PROGRAMS, swapping_program, s.plain_program], start=1):
            executor.adopt(make(step))
            train(executor, 1, first=number)
        assert_equal_states(executor.state(), s.expected_state(5, SEED))


def test_a_transition_stays_within_the_smaller_budget_until_the_larger_holds(device, step):
    small, large = swapping_program(step), s.plain_program(step)
    with open_memory(device, budget_nbytes=small.guaranteed_peak_nbytes) as memory:
        executor = Executor(step, memory)
        executor.adopt(small)
        train(executor, 1)
        assert memory.account.used_nbytes == (8 * 16 + 16 * 3) * 4
        memory.account.set_budget(large.guaranteed_peak_nbytes)
        executor.adopt(large)
        train(executor, 1, first=2)
        memory.account.reset_peak()
        executor.adopt(small)
        memory.account.set_budget(small.guaranteed_peak_nbytes)
        # Nothing came before what had to go had gone.
        assert memory.account.peak_nbytes == (8 * 16 + 16 * 3 + 8 * 16) * 4
        assert memory.account.budget_nbytes == small.guaranteed_peak_nbytes
        train(executor, 1, first=3)
        assert_equal_states(executor.state(), s.expected_state(3, SEED))


def test_swap_outs_precede_swap_ins_when_programs_change(device, step):
    plain = s.plain_instructions(step)
    w2_away = [CopyOut(tensor=s.W2_T), Await(tensor=s.W2_T)]
    w2_back = [CopyIn(tensor=s.W2_T), Await(tensor=s.W2_T)]
    m1_away = [CopyOut(tensor=s.M1_T), Await(tensor=s.M1_T)]
    m1_back = [CopyIn(tensor=s.M1_T), Await(tensor=s.M1_T)]
    without_w2 = s.program(step, [*w2_back, *plain, *w2_away], start_on_host=[s.W2_T])
    without_m1 = s.program(step, [*m1_back, *plain, *m1_away], start_on_host=[s.M1_T])
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(without_w2)
        memory.account.reset_peak()
        device.copies.clear()
        executor.adopt(without_m1)
        away, back = device.copies
        assert (away.to_host, back.to_host) == (True, False)
        assert away.end_ns <= back.begin_ns
        assert memory.account.peak_nbytes == (8 * 16 + 8 * 16) * 4
        assert memory.account.used_nbytes == (8 * 16 + 16 * 3) * 4


def test_a_program_that_fits_no_more_budget_is_not_half_taken_up(device, step):
    program = s.plain_program(step)
    with open_memory(device, budget_nbytes=100) as memory:
        executor = Executor(step, memory)
        with pytest.raises(DeviceOutOfMemory):
            executor.adopt(program)
        with pytest.raises(AssertionError, match="no program is adopted"):
            executor.run_iteration(s.small_batch(1))
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)


def test_after_a_failed_change_of_programs_no_iteration_runs(device, step):
    small, large = swapping_program(step), s.plain_program(step)
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(small)
        memory.account.set_budget((8 * 16 + 16 * 3) * 4)
        with pytest.raises(DeviceOutOfMemory):
            executor.adopt(large)
        with pytest.raises(AssertionError, match="no program is adopted"):
            executor.run_iteration(s.small_batch(1))
        assert_equal_states(executor.state(), s.small_state())


def test_the_random_stream_is_the_jobs_own_whatever_the_program(device, step):
    states = []
    before = torch.get_rng_state()
    for job, make in enumerate(PROGRAMS):
        with open_memory(device, job=job) as memory:
            executor = Executor(step, memory)
            executor.adopt(make(step))
            train(executor, 2)
            states.append(memory.random_state())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])
    assert not torch.equal(states[0], torch.Generator().manual_seed(SEED).get_state())


def test_a_job_goes_on_from_a_checkpoint_as_if_nothing_had_happened(device, step):
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(swapping_program(step))
        train(executor, 2)
        state, random_state = executor.state(), memory.random_state()
    with open_memory(device, state=state) as memory:
        memory.set_random_state(random_state)
        executor = Executor(step, memory)
        executor.adopt(recomputing_program(step))
        train(executor, 2, first=3)
        assert_equal_states(executor.state(), s.expected_state(4, SEED))


def test_state_can_be_read_before_any_program_is_adopted(device, step):
    with open_memory(device) as memory:
        assert_equal_states(memory.state(), s.small_state())
        assert_equal_states(Executor(step, memory).state(), s.small_state())


def test_two_steps_share_the_tensors_that_both_name(device, step):
    forward = s.small_forward()
    training, validation = s.plain_program(step), s.plain_program(forward)
    with open_memory(device) as memory:
        trainer, validator = Executor(step, memory), Executor(forward, memory)
        trainer.adopt(training)
        train(trainer, 2)
        validator.adopt(validation)
        weights = s.expected_state(2, SEED)
        x = s.small_batch(9)
        logits = validator.run_iteration(x).outputs["logits"]
        assert torch.equal(logits, x[0] @ weights["parameter/w1"] @ weights["parameter/w2"])
        with pytest.raises(AssertionError, match="another step has run since"):
            train(trainer, 1)
        trainer.adopt(training)
        train(trainer, 1, first=3)
        assert_equal_states(trainer.state(), s.expected_state(3, SEED))


@pytest.mark.parametrize(("spare_nbytes", "evicted_nbytes"), [(512, 0), (511, 512)])
def test_tensors_unknown_to_a_step_leave_only_when_it_needs_their_room(
    device, step, spare_nbytes, evicted_nbytes
):
    forward = s.small_forward()
    validation = s.plain_program(forward)
    with open_memory(device) as memory:
        trainer, validator = Executor(step, memory), Executor(forward, memory)
        trainer.adopt(s.plain_program(step))
        train(trainer, 1)
        used_nbytes = memory.account.used_nbytes
        memory.account.set_budget(validation.guaranteed_peak_nbytes + spare_nbytes)
        validator.adopt(validation)
        assert used_nbytes - memory.account.used_nbytes == evicted_nbytes
        validator.run_iteration(s.small_batch(9))
        assert_equal_states(memory.state(), s.expected_state(1, SEED))


def test_a_closed_step_leaves_the_jobs_tensors_in_place(device, step):
    with open_memory(device) as memory:
        trainer, validator = Executor(step, memory), Executor(s.small_forward(), memory)
        validator.adopt(s.plain_program(s.small_forward()))
        validator.run_iteration(s.small_batch(1))
        validator.close()
        trainer.adopt(s.plain_program(step))
        train(trainer, 2)
        assert_equal_states(trainer.state(), s.expected_state(2, SEED))


def test_jobs_in_threads_share_a_device_within_its_capacity_and_do_not_disturb_each_other(step):
    program = swapping_program(step)
    capacity_nbytes = 4 * program.guaranteed_peak_nbytes
    device = CpuDevice(memory_nbytes=capacity_nbytes, threads=1, d2h_bytes_per_s=10_000_000)
    states = {}

    def run(job):
        with open_memory(device, budget_nbytes=program.guaranteed_peak_nbytes, job=job) as memory:
            executor = Executor(step, memory)
            executor.adopt(program)
            train(executor, 5)
            device.memory.validate()
            states[job] = executor.state()

    at_once(run, range(4))
    want = s.expected_state(5, SEED)
    for job in range(4):
        assert_equal_states(states[job], want)
    assert device.memory.used_nbytes == 0
    assert device.memory.peak_nbytes <= capacity_nbytes
    device.close()


@pytest.mark.parametrize(("delta_ns", "begin_ns"), [(300, 300), (100, 261)])
def test_a_swap_ins_delay_counts_from_the_end_of_the_op_before_waits_included(
    device, step, monkeypatch, delta_ns, begin_ns
):
    monkeypatch.setattr("tensile_db.worker.execution.swapper.time.monotonic_ns", lambda: device.now_ns)
    instructions = [i for i in swapping_program(step).instructions if i != CopyIn(tensor=s.M1_T)]
    # Ops take no time; h leaves from 5 ns on, in 256.
    awaited = instructions.index(Await(tensor=s.H))
    instructions.insert(awaited + 1, CopyIn(tensor=s.M1_T, delta_ns=delta_ns))
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(s.program(step, instructions, start_on_host=[s.M1_T]))
        begun_ns, device.copies = device.now_ns, []
        train(executor, 1)
    first = next(copy for copy in device.copies if not copy.to_host)
    assert first.begin_ns == begun_ns + begin_ns
