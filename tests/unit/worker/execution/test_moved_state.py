"""A state that moves between iterations: its bits stay, and no other job's kernels wait for it."""

import pytest
import torch

from tensile_db.errors import DeviceOutOfMemory, DriverOutOfMemory, HostOutOfMemory
from tensile_db.worker.devices.stream_copy import StreamCopy
from tensile_db.worker.execution import job_memory
from tensile_db.worker.execution.executor import Executor
from tests.late.runs import open_late
from tests.late.runtime import SCHEDULES
from tests.late.step import late_step
from tests.steps import small_step as s
from tests.steps.small_runs import SEED, assert_equal_states, open_memory, persistent, swapping_program, train


@pytest.fixture
def moves_one_by_one(monkeypatch):
    """Have each tensor's copy handed over when the one before has ended."""
    monkeypatch.setattr(job_memory, "_GROUP_US", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("moves_one_by_one")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("make", [s.plain_program, swapping_program])
def test_a_state_that_comes_and_goes_keeps_its_bits(one_thread, schedule, make):
    runtime, device = open_late(schedule)
    step = s.small_step()
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(make(step))
        train(executor, 2)
        memory.shrink(0)
        assert memory.account.used_nbytes == 0
        executor.adopt(make(step))
        train(executor, 2, first=3)
        assert_equal_states(executor.state(), s.expected_state(4, SEED))
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)
    device.close()


class Beside:
    """Another job, which hands a kernel over whenever a copy of the state is under way."""

    def __init__(self, runtime, device):
        self.given = 0
        self.ran = 0
        #: How many kernels given meanwhile had run when each copy had ended.
        self.ran_by_copy = []
        self._runtime, self._device = runtime, device
        with device.computing():
            self._tensor = torch.zeros(1)

    def copied(self, finish):
        def beside(copy):
            with self._device.computing():
                self._runtime.launch(self._run, self._tensor)
            self.given += 1
            finish(copy)
            self.ran_by_copy.append(self.ran)

        return beside

    def _run(self, _):
        self.ran += 1


def moved(monkeypatch, move):
    """Return what a job beside saw, and the waits for copies that had not ended when they were given."""
    runtime, device = open_late("lazy")
    step = s.small_step()
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        beside, late = Beside(runtime, device), []
        monkeypatch.setattr(StreamCopy, "finish", beside.copied(StreamCopy.finish))
        executor.adopt(s.plain_program(step))
        train(executor, 1)
        device.finish()
        beside.given = beside.ran = 0
        beside.ran_by_copy.clear()
        wait = runtime.wait

        def noted(stream, event):
            if stream is device._streams.compute and event.at_ns is None:
                late.append(event)
            wait(stream, event)

        monkeypatch.setattr(runtime, "wait", noted)
        move(executor, memory, step)
        monkeypatch.setattr(runtime, "wait", wait)
    device.close()
    return beside, late


def leave(executor, memory, step):
    memory.shrink(0)


def leave_and_come(executor, memory, step):
    memory.shrink(0)
    executor.adopt(s.plain_program(step))


@pytest.mark.usefixtures("moves_one_by_one")
@pytest.mark.parametrize("move", [leave, leave_and_come])
def test_no_copy_comes_after_kernels_given_meanwhile_and_no_kernel_after_a_copy(
    one_thread, monkeypatch, move
):
    beside, late = moved(monkeypatch, move)
    tensors = len(s.small_state())
    assert beside.given == tensors * (1 if move is leave else 2)
    # Where it leaves, none of the kernels given meanwhile; where it comes back, none but those given before.
    assert beside.ran_by_copy == [0] * tensors + ([] if move is leave else [tensors] * tensors)
    assert late == []


def test_kernels_that_come_after_a_copy_are_there_to_be_seen(one_thread, monkeypatch):
    def swap(executor, memory, step):
        for block in persistent(memory, step):
            memory.swapper.copy_out(block)
            memory.swapper.settle(block)

    beside, late = moved(monkeypatch, swap)
    assert (beside.given, len(late)) == (0, len(s.small_state()))


class Before:
    """Another job, which uses and lets go of memory and buffers just before the state's are taken."""

    def __init__(self, runtime, device, monkeypatch):
        #: What it has copied to the device: nothing but fives.
        self.arrived = []
        self._runtime, self._device = runtime, device
        self._allocate, self._acquire = device.allocate, device.host.acquire
        monkeypatch.setattr(device, "allocate", self.allocate)
        monkeypatch.setattr(device.host, "acquire", self.acquire)

    def allocate(self, nbytes):
        with self._device.computing():
            storage = self._allocate(nbytes)
            tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._runtime.launch(lambda late: late.fill_(9), tensor)
            del storage, tensor
        return self._allocate(nbytes)

    def acquire(self, nbytes):
        buffer = self._acquire(nbytes)
        self._device.finish()
        buffer.fill_(5)
        with self._device.computing():
            self.arrived.append(self._allocate(nbytes))
        self._device.copy_in(2, buffer, self.arrived[-1], 0).wait()
        self._device.host.release(buffer)
        return self._acquire(nbytes)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_others_did_with_memory_and_buffers_happens_before_they_are_used(
    one_thread, monkeypatch, schedule
):
    runtime, device = open_late(schedule)
    step = s.small_step()
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(s.plain_program(step))
        train(executor, 2)
        with monkeypatch.context() as patch:
            before = Before(runtime, device, patch)
            memory.shrink(0)
            state = executor.state()
            executor.adopt(s.plain_program(step))
        assert len(before.arrived) == len(s.small_state())
        assert all(bytes(storage) == b"\5" * storage.nbytes() for storage in before.arrived)
        assert_equal_states(state, s.expected_state(2, SEED))
        train(executor, 1, first=3)
        assert_equal_states(executor.state(), s.expected_state(3, SEED))
    device.close()


@pytest.mark.parametrize("refuses", ["account", "driver"])
def test_a_state_for_which_there_is_no_room_stays_as_it_is(one_thread, refuses):
    runtime, device = open_late("lazy")
    step = s.small_step()
    nbytes = sum(value.nbytes for value in s.small_state().values())
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(s.plain_program(step))
        train(executor, 1)
        memory.shrink(0)
        held_nbytes = runtime.held_nbytes
        if refuses == "account":
            memory.account.set_budget(nbytes - 1)
        else:
            runtime.capacity_nbytes = held_nbytes + nbytes - 1
        with pytest.raises(DeviceOutOfMemory if refuses == "account" else DriverOutOfMemory) as refusal:
            executor.adopt(s.plain_program(step))
        # Others are granted it while the exception, and its frames, are still there.
        assert (memory.account.used_nbytes, runtime.held_nbytes) == (0, held_nbytes)
        assert refusal.value is not None
        assert_equal_states(executor.state(), s.expected_state(1, SEED))
    assert device.memory.used_nbytes == 0
    device.close()


def test_a_state_for_which_the_host_has_no_room_stays_on_the_device(one_thread, monkeypatch):
    runtime, device = open_late("lazy")
    step = s.small_step()
    with open_memory(device) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(s.plain_program(step))
        train(executor, 1)
        acquire, used_nbytes = device.host.acquire, device.host.used_nbytes

        def refuse_the_second(nbytes):
            if device.host.used_nbytes > used_nbytes:
                raise HostOutOfMemory(wanted_nbytes=nbytes, used_nbytes=0, limit_nbytes=0)
            return acquire(nbytes)

        monkeypatch.setattr(device.host, "acquire", refuse_the_second)
        with pytest.raises(HostOutOfMemory):
            memory.shrink(0)
        monkeypatch.undo()
        executor.adopt(s.plain_program(step))
        assert device.host.used_nbytes == used_nbytes
        train(executor, 1, first=2)
        assert_equal_states(executor.state(), s.expected_state(2, SEED))
    device.close()
