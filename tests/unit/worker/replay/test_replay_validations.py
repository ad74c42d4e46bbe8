"""What was taken down of a training is kept while the job goes forward in between, where there is room."""

import dataclasses

import pytest

from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.execution.replaying import PAYS_AFTER
from tests.late.runs import AMPLE, Told, open_late
from tests.late.runtime import SCHEDULES
from tests.late.step import late_step
from tests.played.limited_host import LimitedHost
from tests.steps import bitwise_runs as bitwise
from tests.steps import small_step as s
from tests.steps.small_networks import training_of
from tests.steps.small_runs import (
    SEED,
    assert_equal_states,
    open_memory,
    persistent,
    swapping_program,
    there_and_back,
    train,
)


class ValidatedTraining:
    """A training of the small step that is validated after each epoch."""

    def __init__(self, make, *, schedule="lazy", budget_nbytes=AMPLE):
        self.runtime, self.device = open_late(schedule, can_record=True)
        self.host = LimitedHost(1 << 30)
        self.device.host = self.host.pool()
        step, forward = s.small_step(), s.small_forward()
        self.program, self.validation = make(step), s.plain_program(forward)
        self.told = Told()
        self.memory = open_memory(self.device, budget_nbytes)
        self.executor = Executor(late_step(step, self.runtime), self.memory, tell=self.told)
        self.validator = Executor(late_step(forward, self.runtime), self.memory, replay=False)
        self.iterations = 0

    def epoch(self, iterations):
        """Train; return which iterations were replayed."""
        self.executor.adopt(self.program)
        results = train(self.executor, iterations, first=self.iterations + 1)
        self.iterations += iterations
        return [result.replayed for result in results]

    def validate(self):
        """Go forward twice, and see that the logits are the trained weights'."""
        self.validator.adopt(self.validation)
        want = s.expected_state(self.iterations, SEED)
        for number in (98, 99):
            (x,) = s.small_batch(number)
            logits = self.validator.run_iteration([x]).outputs["logits"]
            assert (logits == x @ want["parameter/w1"] @ want["parameter/w2"]).all()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.memory.close()
        if kind is None:
            assert (self.device.memory.used_nbytes, self.device.host.used_nbytes) == (0, 0)
            assert self.runtime.open_tapes == []
        self.device.close()


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
def test_epochs_of_any_length_are_replayed_with_validations_in_between(one_thread, schedule, make):
    with ValidatedTraining(make, schedule=schedule) as training:
        replayed = []
        for iterations in (1, 1, 1, 2, 3):
            replayed += training.epoch(iterations)
            training.validate()
        assert replayed == [False, False] + 6 * [True]
        assert [what for what, _ in training.told.said] == ["replayed"]
        assert_equal_states(training.executor.state(), s.expected_state(8, SEED))


def test_it_is_the_same_recording_that_is_kept(one_thread):
    with ValidatedTraining(swapping_program) as training:
        training.epoch(3)
        (tape,) = training.runtime.open_tapes
        for _ in range(3):
            training.validate()
            assert training.runtime.open_tapes == [tape]
            assert training.epoch(1) == [True]
            assert training.runtime.open_tapes == [tape]


@pytest.mark.parametrize(("spare_nbytes", "kept"), [(0, True), (-1, False)])
def test_it_goes_where_a_validation_needs_its_memory(one_thread, spare_nbytes, kept):
    with ValidatedTraining(s.plain_program) as training:
        training.epoch(3)
        account, validation = training.memory.account, training.validation
        beyond_nbytes = validation.guaranteed_peak_nbytes - validation.resident_nbytes
        account.set_budget(account.used_nbytes + beyond_nbytes + spare_nbytes)
        of_training_nbytes = training.program.guaranteed_peak_nbytes - training.program.resident_nbytes
        assert of_training_nbytes > beyond_nbytes
        training.validate()
        assert bool(training.runtime.open_tapes) == kept
        training.device.memory.validate()
        # What was kept is replayed, though beside it the training itself would not fit op by op.
        assert training.epoch(2)[0] == kept
        assert_equal_states(training.executor.state(), s.expected_state(5, SEED))


def test_one_that_paid_before_it_went_comes_again_at_once(one_thread):
    with ValidatedTraining(s.plain_program) as training:
        assert training.epoch(2 + PAYS_AFTER) == 2 * [False] + PAYS_AFTER * [True]
        training.memory.forget_recorded()
        training.validate()
        assert training.epoch(PAYS_AFTER - 1) == (PAYS_AFTER - 1) * [True]
        training.memory.forget_recorded()
        training.validate()
        # Fewer did not pay: the next attempt waits twice as long.
        assert training.epoch(6) == 4 * [False] + 2 * [True]
        assert_equal_states(training.executor.state(), s.expected_state(training.iterations, SEED))


def test_another_program_has_to_settle_first(one_thread):
    with ValidatedTraining(s.plain_program) as training:
        training.epoch(3)
        training.validate()
        # Like the one before, from where it is: what was taken down goes all the same.
        training.program = s.plain_program(s.small_step())
        training.executor.adopt(training.program)
        assert training.runtime.open_tapes == []
        assert training.epoch(4) == [False, False, True, True]
        assert len(training.runtime.open_tapes) == 1
        assert_equal_states(training.executor.state(), s.expected_state(7, SEED))


def test_a_program_that_cannot_be_replayed_says_nothing_of_the_next_one(one_thread):
    program = s.plain_program(s.small_step())
    with ValidatedTraining(s.plain_program, budget_nbytes=program.guaranteed_peak_nbytes) as training:
        assert training.epoch(4) == 4 * [False]
        training.memory.account.set_budget(AMPLE)
        assert training.epoch(2) == 2 * [False]
        training.program = program
        assert training.epoch(3) == [False, False, True]
        assert [what for what, _ in training.told.said] == ["not_replayed", "replayed"]


@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
@pytest.mark.parametrize("leaves", [True, False])
def test_state_that_left_in_between_costs_an_iteration_and_not_the_replay(one_thread, make, leaves):
    with ValidatedTraining(make) as training:
        training.memory.state_leaves = leaves
        assert training.epoch(12) == 2 * [False] + 10 * [True]
        training.memory.shrink(0)
        training.validate()
        assert training.epoch(12) == [False] + 11 * [True]
        assert [what for what, _ in training.told.said] == ["replayed"]
        assert_equal_states(training.executor.state(), s.expected_state(24, SEED))


@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
@pytest.mark.parametrize("parameter", ["parameter/w1", "parameter/w2"])
def test_it_goes_where_a_validation_brings_a_parameter_back_to_another_place(one_thread, make, parameter):
    with ValidatedTraining(make) as training:
        _, training.validation = there_and_back(s.small_forward(), parameter)
        assert training.epoch(12) == 2 * [False] + 10 * [True]
        training.validate()
        assert training.runtime.open_tapes == []
        training.device.memory.validate()
        assert training.epoch(12) == [False] + 11 * [True]
        assert_equal_states(training.executor.state(), s.expected_state(24, SEED))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "wanted"),
    [
        # The first iteration of each is run op by op, for state was moved.
        pytest.param(1, 3 * [False], marks=pytest.mark.thorough),
        # It goes too soon, so the next one is longer in coming.
        (3, [False, False, True, False, False, False, False, True, True]),
        pytest.param(10, 2 * [False] + 8 * [True] + 2 * ([False] + 9 * [True]), marks=pytest.mark.thorough),
    ],
)
def test_a_validation_that_moves_state_costs_the_recording_and_an_iteration(one_thread, length, wanted):
    assert PAYS_AFTER == 8
    training = dataclasses.replace(training_of("resnet", "momentum", 2), iterations=len(wanted))
    runtime, device = open_late("random 1", can_record=True)
    step, state = bitwise.capture_once(training)
    forward = capture_forward_step(training.build(), training.shape)
    plan, validation = bitwise.tight_plan(step, device, 0.6), bitwise.tight_plan(forward, device, 1.0)
    assert plan.program.start_on_host
    told, replayed = Told(), []
    with JobMemory(device, job=1, budget_nbytes=AMPLE, state=state, seed=bitwise.SEED) as memory:
        trainer = Executor(late_step(step, runtime), memory, tell=told)
        validator = Executor(late_step(forward, runtime), memory, replay=False)
        for number, batch in enumerate(training.batches()):
            if number % length == 0:
                validator.adopt(validation.program)
                validator.run_iteration(batch[:1])
                trainer.adopt(plan.program)
            replayed.append(trainer.run_iteration(batch, number + 1).replayed)
        got = bitwise.bits_of(trainer.state())
    device.close()
    assert bitwise.differing(got, bitwise.train_eagerly(training)[0]) == []
    assert replayed == wanted
    assert [what for what, _ in told.said] == (["replayed"] if any(wanted) else [])


@pytest.mark.parametrize(("spare_nbytes", "kept"), [(0, True), (-1, False)])
def test_it_goes_where_a_validation_needs_its_buffers_on_the_host(one_thread, spare_nbytes, kept):
    hidden, validation = there_and_back(s.small_forward(), "h")
    with ValidatedTraining(swapping_program) as training:
        training.validation = validation
        training.epoch(3)
        training.device.host.trim()
        training.host.limit_nbytes = training.host.used_nbytes + hidden.nbytes + spare_nbytes
        training.validate()
        assert bool(training.runtime.open_tapes) == kept
        training.epoch(2)
        assert_equal_states(training.executor.state(), s.expected_state(5, SEED))


def test_a_host_copy_is_dropped_where_no_program_swaps_the_tensor_out(one_thread):
    with ValidatedTraining(s.plain_program) as training:
        training.executor.adopt(training.program)
        memory = training.memory
        blocks = {block.name: block for block in persistent(memory, s.small_step())}
        first, second = blocks["parameter/w1"], blocks["parameter/w2"]
        momentum = blocks["optimizer_state/w1/momentum_buffer"]
        memory.shrink(0)
        memory.state_leaves = True
        training.executor.adopt(training.program)
        memory.state_leaves = False
        memory.swaps_out("one", [first])
        memory.swaps_out("other", [second])
        memory.drop_unused_host_copies(blocks.values())
        assert [block.host is None for block in (first, second, momentum)] == [False, False, True]
        memory.swaps_no_more("one")
        memory.drop_unused_host_copies(blocks.values())
        assert [block.host is None for block in (first, second)] == [True, False]


@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
def test_no_more_is_held_than_is_charged_after_an_iteration_op_by_op(one_thread, make):
    with ValidatedTraining(make) as training:
        training.epoch(3)
        training.executor.run_iteration(s.small_batch(4), 4, sample_latencies=True)
        training.device.finish()
        taped_nbytes = sum(tape.nbytes for tape in training.runtime.open_tapes)
        assert training.runtime.held_nbytes + taped_nbytes == training.memory.account.used_nbytes
        training.iterations += 1
        assert training.epoch(2) == [True, True]
        assert_equal_states(training.executor.state(), s.expected_state(6, SEED))
