"""Jobs that take turns on a real device: bits, memory, and what makes them look up."""

import threading

import pytest

from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.jobs.turn import Turn
from tensile_db.worker.mailbox import Mailbox, Stopped
from tensile_db.worker.messages import StopReason
from tensile_db.worker.turnstile import Turnstile
from tests.steps import small_step as s
from tests.steps.small_runs import SEED, assert_equal_states, open_memory, swapping_program

ITERATIONS = 12


@pytest.fixture(scope="module")
def step():
    return s.small_step()


class Trainer:
    """One job, in the thread that calls `train`."""

    def __init__(self, device, turnstile, step, job, program, share):
        self.mailbox = Mailbox()
        self.states = []
        self.errors = []
        #: Iterations so far.
        self.ran = 0
        #: To the device, when turns began.
        self.brought_nbytes = 0
        self._device, self._turnstile, self._step = device, turnstile, step
        self._job, self._program, self._share = job, program, share
        #: Iterations of its turns, where that is not as its share says.
        self.lasts = share.iterations

    def train(self):
        try:
            self._turnstile.come_in(self._job, priority=0)
            with open_memory(self._device, self._share.budget_nbytes, self._job) as memory:
                self._iterate(memory)
        except Exception as error:  # noqa: BLE001  # told to the test
            self.errors.append(error)
        finally:
            self._turnstile.leave(self._job)

    def _iterate(self, memory):
        turn = Turn(self._turnstile, self.mailbox, memory, job=self._job)
        executor = Executor(self._step, memory)
        try:
            turn.change(self._share)
            turn.last(self.lasts)
            for iteration in range(1, ITERATIONS + 1):
                while not turn.take(executor, self._program, left_ns=1):
                    pass
                result = executor.run_iteration(s.small_batch(iteration), iteration)
                self.ran = iteration
                turn.ran(result.elapsed_ns)
            turn.end()
            self.brought_nbytes = turn.brought_nbytes
            assert memory.account.used_nbytes <= self._share.resident_nbytes
            self.states.append(executor.state())
        finally:
            executor.close()


def run(trainers):
    threads = [threading.Thread(target=trainer.train) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [trainer.errors for trainer in trainers] == [[]] * len(trainers)


@pytest.mark.parametrize("iterations", [1, 3])
def test_jobs_whose_state_leaves_with_their_turn_fit_into_the_memory_of_one(make_device, step, iterations):
    program = s.plain_program(step)
    share = Share(
        lane=0,
        resident_nbytes=0,
        ephemeral_nbytes=program.guaranteed_peak_nbytes,
        iterations=iterations,
    )
    device = make_device(program.guaranteed_peak_nbytes)
    turnstile = Turnstile(memory_nbytes=program.guaranteed_peak_nbytes)
    trainers = [Trainer(device, turnstile, step, job, program, share) for job in range(1, 4)]
    run(trainers)
    for trainer in trainers:
        assert_equal_states(trainer.states[0], s.expected_state(ITERATIONS, SEED))
    assert device.memory.peak_nbytes == program.guaranteed_peak_nbytes


def test_jobs_whose_state_stays_need_room_for_one_iteration_only(make_device, step):
    program = swapping_program(step)
    resident = program.resident_nbytes
    assert 0 < resident < program.guaranteed_peak_nbytes
    share = Share(
        lane=0, resident_nbytes=resident, ephemeral_nbytes=program.guaranteed_peak_nbytes - resident
    )
    memory_nbytes = program.guaranteed_peak_nbytes + resident
    device = make_device(memory_nbytes)
    turnstile = Turnstile(memory_nbytes=memory_nbytes)
    trainers = [Trainer(device, turnstile, step, job, program, share) for job in (1, 2)]
    run(trainers)
    for trainer in trainers:
        assert_equal_states(trainer.states[0], s.expected_state(ITERATIONS, SEED))
    assert device.memory.peak_nbytes <= memory_nbytes


def test_a_switch_between_jobs_copies_nothing_while_their_states_fit(make_device, step):
    program = s.plain_program(step)
    peak, state = program.guaranteed_peak_nbytes, program.resident_nbytes
    stays = Share(lane=0, resident_nbytes=state, ephemeral_nbytes=peak - state)
    device = make_device(peak + 2 * state)
    turnstile = Turnstile(memory_nbytes=peak + 2 * state)
    trainers = [Trainer(device, turnstile, step, job, program, stays) for job in range(1, 4)]
    run(trainers)
    # Once each, though every iteration was a turn of its own.
    assert [trainer.brought_nbytes for trainer in trainers] == [state] * 3
    assert device.memory.peak_nbytes <= peak + 2 * state


@pytest.mark.parametrize("iterations", [1, 3])
def test_states_are_moved_while_others_compute(make_device, step, iterations):
    program = swapping_program(step)
    peak, state = program.guaranteed_peak_nbytes, program.resident_nbytes
    share = Share(
        lane=0, resident_nbytes=0, ephemeral_nbytes=peak, transit_nbytes=state, iterations=iterations
    )
    device = make_device(peak + state)
    turnstile = Turnstile(memory_nbytes=peak + state)
    trainers = [Trainer(device, turnstile, step, job, program, share) for job in range(1, 5)]
    run(trainers)
    for trainer in trainers:
        assert_equal_states(trainer.states[0], s.expected_state(ITERATIONS, SEED))
    assert peak <= device.memory.peak_nbytes <= peak + state
    assert device.memory.used_nbytes == 0


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.PAUSED, StopReason.SHUTDOWN])
def test_a_job_that_has_approached_hears_that_it_must_stop(make_device, step, reason):
    program = swapping_program(step)
    peak, state = program.guaranteed_peak_nbytes, program.resident_nbytes
    share = Share(lane=0, resident_nbytes=0, ephemeral_nbytes=peak, transit_nbytes=state)
    device = make_device(peak + state)
    turnstile = Turnstile(memory_nbytes=peak + state)
    turnstile.come_in(9, priority=0)
    assert turnstile.change(9, share, lambda: None, lambda: False)
    assert turnstile.take(9, left_ns=1, give_up=lambda: False)
    trainer = Trainer(device, turnstile, step, 1, program, share)
    thread = threading.Thread(target=trainer.train)
    thread.start()
    while device.memory.used_nbytes < state:
        assert thread.is_alive()
    trainer.mailbox.stop(reason)
    turnstile.wake()
    thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in trainer.errors] == [Stopped]
    assert device.memory.used_nbytes == 0
    turnstile.give_back(9)
    turnstile.gone(9)
    assert turnstile.take(9, left_ns=1, give_up=lambda: False)


def test_a_state_that_was_not_written_is_not_copied_back(make_device, step):
    program = swapping_program(step)
    peak, state = program.guaranteed_peak_nbytes, program.resident_nbytes
    share = Share(lane=0, resident_nbytes=0, ephemeral_nbytes=peak, transit_nbytes=state)
    device = make_device(peak + state)
    turnstile = Turnstile(memory_nbytes=peak + state)
    turnstile.come_in(1, priority=0)
    with open_memory(device, peak, 1) as memory:
        turn = Turn(turnstile, Mailbox(), memory, job=1)
        executor = Executor(step, memory)
        turn.change(share)
        assert turn.take(executor, program, left_ns=1)
        assert memory.account.used_nbytes == state
        memory.swapper.reset_counts()
        turn.end()
        assert memory.account.used_nbytes == 0
        assert memory.swapper.out_nbytes == 0
        executor.close()
    turnstile.leave(1)


def test_a_job_that_waits_for_its_turn_hears_that_it_must_stop(make_device, step):
    program = s.plain_program(step)
    share = Share(lane=0, resident_nbytes=0, ephemeral_nbytes=program.guaranteed_peak_nbytes)
    device = make_device(program.guaranteed_peak_nbytes)
    turnstile = Turnstile(memory_nbytes=program.guaranteed_peak_nbytes)
    turnstile.come_in(9, priority=0)
    assert turnstile.change(9, share, lambda: None, lambda: False)
    assert turnstile.take(9, left_ns=1, give_up=lambda: False)
    trainer = Trainer(device, turnstile, step, 1, program, share)
    thread = threading.Thread(target=trainer.train)
    thread.start()
    while not turnstile.is_wanted(9):
        pass
    trainer.mailbox.stop(StopReason.CANCELLED)
    turnstile.wake()
    thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in trainer.errors] == [Stopped]
    assert device.memory.used_nbytes == 0


@pytest.mark.parametrize(
    ("serves", "lasts", "iterations"), [(True, 20, 2), (False, 20, 12), (False, 5, 5), (True, 40, 4)]
)
def test_a_turn_of_many_iterations_ends_early_for_one_that_serves(
    make_device, step, serves, lasts, iterations
):
    program = s.plain_program(step)
    peak_nbytes = program.guaranteed_peak_nbytes
    share = Share(lane=0, resident_nbytes=0, ephemeral_nbytes=peak_nbytes, iterations=20)
    assert share.least_iterations == 2
    device = make_device(peak_nbytes)
    turnstile = Turnstile(memory_nbytes=peak_nbytes)
    trainer = Trainer(device, turnstile, step, 1, program, share)
    trainer.lasts = lasts
    turnstile.come_in(9, priority=0)
    assert turnstile.change(9, share, lambda: None, lambda: False)
    assert turnstile.take(9, left_ns=1, give_up=lambda: False)
    thread = threading.Thread(target=trainer.train)
    thread.start()
    while not turnstile.is_wanted(9):
        pass
    taken = []

    def serve():
        turnstile.take(8, left_ns=1, give_up=lambda: False)
        taken.append(trainer.ran)
        turnstile.leave(8)

    # It asks after the trainer, and before that has its turn.
    turnstile.come_in(8, priority=0, serves=serves)
    assert turnstile.change(8, share, lambda: None, lambda: False)
    server = threading.Thread(target=serve)
    server.start()
    while serves and not turnstile.is_wanted_to_serve(9):
        pass
    turnstile.leave(9)
    server.join(60)
    thread.join(60)
    assert trainer.errors == []
    assert taken == [iterations]
