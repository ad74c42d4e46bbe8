"""States that stay on a real device after their turns, and leave it in whichever thread needs the room."""

import random
import threading

import pytest

from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.turn import Turn
from tensile_db.worker.mailbox import Mailbox
from tensile_db.worker.turnstile import Turnstile
from tests.steps import small_step as s
from tests.steps.small_runs import SEED, swapping_program


@pytest.fixture(scope="module")
def step():
    return s.small_step()


class Model:
    """A job that is asked now and then, and writes nothing: its turns bring its state in, and that is all."""

    def __init__(self, device, turnstile, step, job):
        self.job = job
        self._turnstile = turnstile
        turnstile.come_in(job, priority=0, serves=True)
        self.program = swapping_program(step)
        self.memory = JobMemory(
            device,
            job=job,
            budget_nbytes=self.program.guaranteed_peak_nbytes,
            state=s.small_state(),
            seed=SEED,
            keeps_host=True,
        )
        self.turn = Turn(turnstile, Mailbox(), self.memory, job=job, lingers=True)
        self.executor = Executor(step, self.memory)
        self.turn.change(
            Share(lane=0, resident_nbytes=0, ephemeral_nbytes=self.program.guaranteed_peak_nbytes)
        )

    def serve(self):
        """Have a turn; return the bytes that were copied for it."""
        self.memory.swapper.reset_counts()
        brought_nbytes = self.turn.brought_nbytes
        assert self.turn.take(self.executor, self.program, left_ns=1)
        assert self.memory.account.used_nbytes == self.program.resident_nbytes
        self.turn.ran(1)
        self.turn.linger()
        assert self.memory.swapper.in_nbytes == self.turn.brought_nbytes - brought_nbytes
        return self.memory.swapper.in_nbytes

    def asks(self):
        """Whether it waits for a turn."""
        return self._turnstile._turns.asks(self.job)

    def end(self):
        self.turn.let_go()
        self.executor.close()
        self.memory.close()
        self._turnstile.leave(self.job)


@pytest.fixture
def models(make_device, step):
    """Three models, and room for two states beside what is not needed for a turn's."""
    program = swapping_program(step)
    memory_nbytes = program.guaranteed_peak_nbytes + program.resident_nbytes
    device = make_device(memory_nbytes)
    turnstile = Turnstile(memory_nbytes=memory_nbytes)
    models = [Model(device, turnstile, step, job) for job in (1, 2, 3)]
    models[0].device = device
    yield models
    for model in models:
        model.end()
    assert device.memory.used_nbytes == 0


def test_a_model_that_is_asked_again_is_there_still_and_the_longest_unused_makes_room(models):
    first, second, third = models
    state = first.program.resident_nbytes
    assert [model.serve() for model in (first, first, second, first)] == [state, 0, state, 0]
    assert first.device.memory.used_nbytes == 2 * state
    assert third.serve() == state
    assert [model.memory.account.used_nbytes for model in models] == [state, 0, state]
    assert first.serve() == 0
    assert second.serve() == state
    assert [model.memory.account.used_nbytes for model in models] == [state, state, 0]


def test_one_that_does_something_else_than_computing_lets_its_state_go(models):
    first, _, _ = models
    first.serve()
    first.turn.end()
    assert first.memory.account.used_nbytes == 0
    assert first.serve() == first.program.resident_nbytes


def test_one_that_needs_the_room_for_good_gets_it_from_those_who_rest(models, step):
    first, second, third = models
    first.serve()
    second.serve()
    state = first.program.resident_nbytes
    larger = Share(
        lane=0, resident_nbytes=state, ephemeral_nbytes=first.program.guaranteed_peak_nbytes - state
    )
    third.turn.change(larger)
    assert third.serve() == state
    assert first.device.memory.used_nbytes == 2 * state
    assert first.memory.account.used_nbytes == 0


def test_a_state_that_leaves_while_its_job_waits_counts_as_brought_in(models, step):
    first, second, third = models
    first.serve()
    second.serve()
    state = first.program.resident_nbytes
    # The least served comes first, and the state of the longest unused leaves for it.
    first.turn.ran(1)
    assert second.turn.take(second.executor, second.program, left_ns=1)
    brought = []
    threads = [
        threading.Thread(target=lambda each=each: brought.append(each.serve())) for each in (first, third)
    ]
    for thread in threads:
        thread.start()
    while not all(each.asks() for each in (first, third)):
        pass
    assert first.memory.account.used_nbytes == state
    second.turn.linger()
    for thread in threads:
        thread.join(20)
    assert brought == [state, state]


@pytest.mark.slow
def test_a_step_is_closed_beside_a_thread_that_frees_the_state(cpu_device, step):
    unbound, freeing, closed = threading.Event(), threading.Event(), threading.Event()

    class Memory(JobMemory):
        def unbind(self, blocks):
            super().unbind(blocks)
            unbound.set()
            # Nobody frees it before all of the step is closed.
            assert not freeing.wait(0.3)

    class Table(list):
        """Of tensors, as another step of the job has one."""

        def __setitem__(self, place, tensor):
            freeing.set()
            closed.wait(10)
            super().__setitem__(place, tensor)

    program = swapping_program(step)
    budget_nbytes = program.guaranteed_peak_nbytes
    state = s.small_state()
    memory = Memory(cpu_device, job=1, budget_nbytes=budget_nbytes, state=state, seed=SEED, keeps_host=True)
    executor = Executor(step, memory)
    executor.adopt(program)
    executor.run_iteration(s.small_batch(1), 1)
    for block in memory.bind(step):
        # The first that is told.
        block.caches.insert(0, (Table([None]), [0]))

    def shrink():
        unbound.wait(10)
        memory.shrink(0)

    thread = threading.Thread(target=shrink)
    thread.start()
    executor.close()
    closed.set()
    thread.join(10)
    assert memory.account.used_nbytes == 0
    memory.close()


def test_many_threads_take_turns_and_end_while_others_send_their_states_away(models):
    errors = []

    def serve(model):
        rng = random.Random(model.job)
        try:
            for _ in range(150):
                model.serve()
                if rng.random() < 0.1:
                    model.turn.end()
        except Exception as error:  # noqa: BLE001  # told to the test
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    models[0].device.memory.validate()
