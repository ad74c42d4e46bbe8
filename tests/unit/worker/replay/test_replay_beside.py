"""A replay has an order of its own: other jobs' kernels neither wait for it nor disturb it."""

import threading

import pytest

from tensile_db.worker.execution.executor import Executor
from tests.late.runs import open_late
from tests.late.runtime import SCHEDULES
from tests.late.step import late_step
from tests.patience import PATIENCE_S
from tests.steps import small_step as s
from tests.steps.small_runs import SEED, assert_equal_states, open_memory, swapping_program, train


class Jobs:
    """Two jobs of the small step on one device that puts everything off; the first is replayed."""

    def __init__(self, schedule):
        self.runtime, self.device = open_late(schedule, can_record=True)
        self.memories = [open_memory(self.device, job=job) for job in (1, 2)]
        step = late_step(s.small_step(), self.runtime)
        self.replayed, self.plain = (
            Executor(step, memory, replay=is_first)
            for memory, is_first in zip(self.memories, (True, False), strict=True)
        )
        for executor in (self.replayed, self.plain):
            executor.adopt(swapping_program(step))

    def close(self):
        for executor, memory in zip((self.replayed, self.plain), self.memories, strict=True):
            executor.close()
            memory.close()
        assert (self.device.memory.used_nbytes, self.runtime.open_tapes) == (0, [])
        self.device.close()


@pytest.fixture
def jobs_in(one_thread):
    """Give a function that opens the jobs on a device of a schedule; closed at the test's end."""
    opened = []

    def opening(schedule):
        opened.append(Jobs(schedule))
        return opened[-1]

    yield opening
    for jobs in opened:
        jobs.close()


def at_first_wait(runtime, monkeypatch, work):
    """When the host first waits for an event, have `work` done with it in another thread before."""
    synchronize, threads = runtime.synchronize, []

    def synchronizing(event):
        if not threads:
            threads.append(threading.Thread(target=work, args=(event,)))
            threads[0].start()
            threads[0].join(PATIENCE_S)
        synchronize(event)

    monkeypatch.setattr(runtime, "synchronize", synchronizing)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_whole_iteration_of_another_job_fits_between_a_replays_handing_over_and_its_end(
    jobs_in, monkeypatch, schedule
):
    jobs = jobs_in(schedule)
    train(jobs.replayed, 3)
    results = []
    at_first_wait(jobs.runtime, monkeypatch, lambda _: results.extend(train(jobs.plain, 1)))
    (result,) = train(jobs.replayed, 1, first=4)
    assert result.replayed
    assert len(results) == 1
    train(jobs.plain, 3, first=2)
    for executor in (jobs.replayed, jobs.plain):
        assert_equal_states(executor.state(), s.expected_state(4, SEED))


def test_another_jobs_kernels_do_not_wait_for_a_replay(jobs_in, monkeypatch):
    # Nothing runs here that nobody waits for.
    jobs = jobs_in("lazy")
    train(jobs.replayed, 3)
    ended = []

    def train_the_other(replays_begin):
        train(jobs.plain, 1)
        ended.append(replays_begin.at_ns)

    at_first_wait(jobs.runtime, monkeypatch, train_the_other)
    train(jobs.replayed, 1, first=4)
    assert ended == [None]


def test_a_replay_comes_after_what_was_handed_over_before_and_before_what_is_after(jobs_in, monkeypatch):
    jobs = jobs_in("lazy")
    train(jobs.replayed, 3)
    waits = []
    wait = jobs.runtime.wait

    def waiting(stream, event):
        waits.append((stream, event.stream))
        wait(stream, event)

    monkeypatch.setattr(jobs.runtime, "wait", waiting)
    train(jobs.replayed, 1, first=4)
    compute = jobs.device._streams.compute
    begin, *within, end = waits
    own = begin[0]
    assert (begin, end) == ((own, compute), (compute, own))
    # Not even the device's channels are used.
    assert all(compute not in pair for pair in within)
