"""Jobs of one lane that are replayed: each in room of its own, kept while the others have their turns."""

import threading
from dataclasses import replace

import pytest

from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.jobs.turn import Turn
from tensile_db.worker.mailbox import Mailbox
from tensile_db.worker.turnstile import Turnstile
from tests.late.runs import Told, open_late
from tests.late.runtime import SCHEDULES
from tests.late.step import late_step
from tests.patience import PATIENCE_S
from tests.steps import small_step as s
from tests.steps.small_runs import SEED, assert_equal_states, open_memory, swapping_program

pytestmark = pytest.mark.slow

ITERATIONS = 16
#: Of a job that settled at once and keeps what was taken down.
REPLAYED = ITERATIONS - 2


class Trainer:
    """One job, in a thread of its own; what it did is left here."""

    def __init__(self, together, job, share):
        self.replayed = []
        self.state = None
        self.error = None
        self.between_nbytes = []
        self.told = Told()
        self._together, self._job, self._share = together, job, share

    def train(self):
        turnstile = self._together.turnstile
        try:
            turnstile.come_in(self._job, priority=0)
            # A turn needs others that ask for it.
            self._together.all_in.wait(PATIENCE_S)
            with open_memory(self._together.device, self._share.budget_nbytes, self._job) as memory:
                self._iterate(memory)
                turnstile.depart(self._job)
        except Exception as error:  # noqa: BLE001  # told to the test
            self.error = error
        finally:
            turnstile.leave(self._job)

    def _iterate(self, memory):
        together = self._together
        turn = Turn(together.turnstile, Mailbox(), memory, job=self._job)
        executor = Executor(late_step(together.step, together.runtime), memory, tell=self.told)
        turn.change(self._share)
        for iteration in range(1, ITERATIONS + 1):
            while not turn.take(executor, together.program, left_ns=1):
                pass
            result = executor.run_iteration(s.small_batch(iteration), iteration)
            self.replayed.append(result.replayed)
            turn.ran(result.elapsed_ns)
            # Given back without a wait, so that the other one's comes next.
            turn.end()
            self.between_nbytes.append(memory.account.used_nbytes)
        self.state = executor.state()
        executor.close()


class Together:
    """Two jobs of the small step on a device that puts everything off."""

    def __init__(self, schedule, share, program, step):
        memory_nbytes = needed_nbytes([share, share])
        self.step, self.program = step, program
        self.runtime, self.device = open_late(schedule, memory_nbytes=memory_nbytes, can_record=True)
        self.turnstile = Turnstile(memory_nbytes=memory_nbytes)
        self.all_in = threading.Barrier(2)
        self.trainers = [Trainer(self, job, share) for job in (1, 2)]

    def run(self):
        threads = [threading.Thread(target=trainer.train) for trainer in self.trainers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert [trainer.error for trainer in self.trainers] == [None, None]
        assert (self.device.memory.used_nbytes, self.runtime.open_tapes) == (0, [])
        self.device.close()


@pytest.fixture(scope="module")
def step():
    return s.small_step()


def share_of(program, **more):
    resident = program.resident_nbytes
    return Share(
        lane=0,
        resident_nbytes=resident,
        ephemeral_nbytes=program.guaranteed_peak_nbytes - resident,
        **more,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
def test_with_room_for_what_was_taken_down_turns_of_others_cost_no_replay(one_thread, step, schedule, make):
    program = make(step)
    share = share_of(program, recorded_nbytes=2 * program.guaranteed_peak_nbytes)
    together = Together(schedule, share, program, step)
    together.run()
    for trainer in together.trainers:
        assert_equal_states(trainer.state, s.expected_state(ITERATIONS, SEED))
        assert trainer.replayed == [False, False] + REPLAYED * [True]
        ((what, detail),) = trainer.told.said
        assert what == "replayed"
        # Between turns it holds its state and what was taken down, and no more.
        assert set(trainer.between_nbytes[2:]) == {program.resident_nbytes + detail["held_nbytes"]}
        assert max(trainer.between_nbytes) <= share.always_nbytes
    assert together.device.memory.peak_nbytes <= needed_nbytes([share, share])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_room_for_it_what_was_taken_down_goes_with_the_turn(one_thread, step, schedule):
    program = swapping_program(step)
    # Enough to take it down within a turn.
    ample = share_of(program)
    share = replace(ample, ephemeral_nbytes=ample.ephemeral_nbytes + program.guaranteed_peak_nbytes)
    together = Together(schedule, share, program, step)
    together.run()
    for trainer in together.trainers:
        assert_equal_states(trainer.state, s.expected_state(ITERATIONS, SEED))
        # Taken down again ever more seldom.
        assert 0 < sum(trainer.replayed) < REPLAYED / 2
        assert max(trainer.between_nbytes) <= share.resident_nbytes
    assert together.device.memory.peak_nbytes <= needed_nbytes([share, share])


class Alone:
    """A job that is replayed, and keeps what was taken down between turns."""

    def __init__(self, program, step):
        self.share = share_of(program, recorded_nbytes=2 * program.guaranteed_peak_nbytes)
        memory_nbytes = self.share.budget_nbytes
        self.runtime, self.device = open_late("lazy", memory_nbytes=memory_nbytes, can_record=True)
        self.turnstile = Turnstile(memory_nbytes=memory_nbytes)
        self.turnstile.come_in(1, priority=0)
        self.memory = open_memory(self.device, memory_nbytes)
        turn = Turn(self.turnstile, Mailbox(), self.memory, job=1)
        self.executor = Executor(late_step(step, self.runtime), self.memory)
        turn.change(self.share)
        for iteration in range(1, 5):
            assert turn.take(self.executor, program, left_ns=1)
            self.executor.run_iteration(s.small_batch(iteration), iteration)
            turn.end()


def test_what_was_taken_down_does_not_go_in_a_quiet(one_thread, step):
    alone = Alone(s.plain_program(step), step)
    closing = threading.Thread(target=alone.executor.close)
    with alone.turnstile.quiet(lambda: None):
        held_nbytes = alone.memory.account.used_nbytes
        closing.start()
        closing.join(0.3)
        assert closing.is_alive()
        assert alone.memory.account.used_nbytes == held_nbytes
    closing.join(PATIENCE_S)
    assert alone.runtime.open_tapes == []
    alone.memory.close()
    alone.device.close()


def test_room_for_what_was_taken_down_is_for_nothing_else(one_thread, step):
    program = s.plain_program(step)
    share = share_of(program, recorded_nbytes=2 * program.guaranteed_peak_nbytes)
    runtime, device = open_late("lazy", memory_nbytes=share.budget_nbytes, can_record=False)
    turnstile = Turnstile(memory_nbytes=share.budget_nbytes)
    turnstile.come_in(1, priority=0)
    with open_memory(device, share.budget_nbytes) as memory:
        turn = Turn(turnstile, Mailbox(), memory, job=1)
        executor = Executor(late_step(step, runtime), memory)
        turn.change(replace(share, resident_nbytes=0, ephemeral_nbytes=program.guaranteed_peak_nbytes))
        assert turn.take(executor, program, left_ns=1)
        turn.end()
        assert memory.account.used_nbytes == 0
        executor.close()
    device.close()
