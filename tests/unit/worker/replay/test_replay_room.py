"""What a recording needs beside an iteration op by op: the host's buffers once more, and pages of its own."""

import threading

import pytest
import torch
from torch import nn

from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.capture.state import model_state
from tensile_db.errors import HostOutOfMemory
from tensile_db.scheduler.sharing import recorded_memory
from tensile_db.worker.devices.host_memory import HostPool
from tensile_db.worker.execution.executor import Executor
from tests.at_once import at_once
from tests.late.runs import AMPLE, Told, open_late
from tests.late.step import late_step
from tests.late.tape import LateTape
from tests.patience import PATIENCE_S
from tests.played.limited_host import LimitedHost
from tests.steps import small_step as s
from tests.steps.small_runs import (
    SEED,
    assert_equal_states,
    open_memory,
    swapping_program,
    there_and_back,
    train,
)

UNLIMITED = 1 << 40
#: The fifth of them is sampled, so run op by op while there is a recording.
ITERATIONS, SAMPLED = 8, 5


def run(host, *, replay=True, make=swapping_program):
    """Train with swaps; return whether each iteration was replayed, and what was said of it."""
    runtime, device = open_late("lazy", can_record=True)
    device.host = host.pool()
    step, told = s.small_step(), Told()
    with open_memory(device, AMPLE) as memory:
        executor = Executor(late_step(step, runtime), memory, replay=replay, tell=told)
        executor.adopt(make(step))
        results = [
            executor.run_iteration(s.small_batch(number), number, sample_latencies=number == SAMPLED)
            for number in range(1, ITERATIONS + 1)
        ]
        assert_equal_states(executor.state(), s.expected_state(ITERATIONS, SEED))
    device.close()
    return [result.replayed for result in results], told.said


def activation_swapped(step):
    """Return a program that leaves state where it is: beside what replays it, it can be run op by op."""
    return there_and_back(step, "h")[1]


def test_where_the_host_has_room_for_one_set_of_buffers_a_job_is_replayed_and_sampled(one_thread):
    plain, ample = LimitedHost(UNLIMITED), LimitedHost(UNLIMITED)
    run(plain, replay=False, make=activation_swapped)
    replayed, _ = run(ample, make=activation_swapped)
    assert replayed == [number > 2 and number != SAMPLED for number in range(1, ITERATIONS + 1)]
    assert plain.most_nbytes < ample.most_nbytes
    for limit_nbytes in range(plain.most_nbytes, ample.most_nbytes + 1, 64):
        replayed, said = run(LimitedHost(limit_nbytes), make=activation_swapped)
        assert [what for what, _ in said] in ([], ["replayed"])
        assert not any(replayed[number - 1] for number in (1, 2, SAMPLED))
        if limit_nbytes == ample.most_nbytes:
            assert sum(replayed) == ITERATIONS - 3


def test_no_room_on_the_host_is_no_reason_never_to_replay(one_thread, monkeypatch):
    host = LimitedHost(UNLIMITED)
    refusals = []

    def refuse(self, block):
        if not refusals:
            refusals.append(block.name)
            raise HostOutOfMemory(wanted_nbytes=1, used_nbytes=0, limit_nbytes=0)
        return acquire(self, block)

    from tensile_db.worker.execution.recording_swapper import RecordingSwapper

    acquire = RecordingSwapper._acquire_host
    monkeypatch.setattr(RecordingSwapper, "_acquire_host", refuse)
    replayed, said = run(host)
    assert refusals
    assert [what for what, _ in said] == ["replayed"]
    assert replayed[-1]


def test_buffers_of_other_sizes_that_are_kept_for_later_give_way():
    host = LimitedHost(100)
    pool = host.pool()
    pool.release(pool.acquire(60))
    assert pool.free_nbytes == 60
    held = pool.acquire(70)
    assert (pool.used_nbytes, pool.free_nbytes) == (70, 0)
    with pytest.raises(HostOutOfMemory):
        pool.acquire(40)
    assert pool.used_nbytes == 70
    pool.release(held)


def test_buffers_that_are_reserved_are_free_at_once_or_none_is_held():
    host = LimitedHost(100)
    pool = host.pool()
    pool.reserve([30, 30, 40])
    assert (pool.used_nbytes, pool.free_nbytes) == (0, 100)
    held = [pool.acquire(nbytes) for nbytes in (30, 40)]
    with pytest.raises(HostOutOfMemory):
        pool.reserve([30, 30])
    assert pool.used_nbytes == 70
    for buffer in held:
        pool.release(buffer)
    assert pool.used_nbytes == 0


def test_who_looks_for_room_in_vain_takes_none_from_others():
    host, is_short, goes_on = LimitedHost(100), threading.Event(), threading.Event()

    def make(nbytes):
        try:
            return host.make(nbytes)
        except HostOutOfMemory:
            # The first time only: in the middle of what is reserved, all of the host is taken.
            if not is_short.is_set():
                is_short.set()
                assert goes_on.wait(PATIENCE_S)
            raise

    pool = HostPool(make, host.discard)

    def reserve():
        with pytest.raises(HostOutOfMemory):
            pool.reserve([40, 60, 10])

    def swap_out():
        assert is_short.wait(PATIENCE_S)
        threading.Timer(0.1, goes_on.set).start()
        pool.release(pool.acquire(30))

    at_once(lambda work: work(), [reserve, swap_out])
    assert pool.used_nbytes == 0


@pytest.mark.parametrize("granule", [1, 64, 4096])
def test_what_a_recording_holds_while_it_is_made_is_charged_before(one_thread, monkeypatch, granule):
    step = s.small_step()
    program = swapping_program(step)
    runtime, device = open_late("lazy", can_record=True, tape_granule=granule)
    # As of a device whose other memory is promised to others: whoever took it would take it from them.
    uncharged, allocate = [], LateTape.allocate

    def watched(self, nbytes, make):
        piece = allocate(self, nbytes, make)
        uncharged.append(self.nbytes + program.resident_nbytes - memory.account.used_nbytes)
        return piece

    monkeypatch.setattr(LateTape, "allocate", watched)
    with open_memory(device, AMPLE) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(program)
        results = train(executor, 4)
        (tape,) = runtime.open_tapes
        assert memory.account.used_nbytes == program.resident_nbytes + tape.nbytes
        # What was charged ahead is no peak.
        assert [result.peak_nbytes for result in results[2:]] == 2 * [memory.account.used_nbytes]
        assert device.memory.peak_nbytes <= 2 * memory.account.used_nbytes
    assert uncharged
    assert max(uncharged) <= 0
    device.close()


@pytest.mark.slow
def test_what_goes_forward_is_charged_once_for_what_it_reports(one_thread, monkeypatch):
    # What is set aside for libraries, too, would hide it; pages have 20 MiB, and what is reported 32.
    monkeypatch.setattr(recorded_memory, "_LIBRARIES_NBYTES", 0)
    network = nn.Linear(4, 2**20)
    step = capture_forward_step(network, (8, 4))
    program = s.plain_program(step)
    runtime, device = open_late("lazy", can_record=True)
    rows = [torch.randn(8, 4) for _ in range(4)]
    with open_memory(device, AMPLE, state=model_state(network)) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(program)
        results = [executor.run_iteration([each]) for each in rows]
        (tape,) = runtime.open_tapes
        assert memory.account.used_nbytes == program.resident_nbytes + tape.nbytes
        # The one that takes down holds no more than the next.
        assert [result.peak_nbytes for result in results[2:]] == 2 * [memory.account.used_nbytes]
        assert all(map(torch.equal, [result.outputs["logits"] for result in results], map(network, rows)))
    device.close()


def test_where_it_cannot_fit_nothing_is_allocated_for_a_recording(one_thread, monkeypatch):
    monkeypatch.setattr(LateTape, "__init__", None)
    step, told = s.small_step(), Told()
    program = swapping_program(step)
    runtime, device = open_late("lazy", can_record=True)
    with open_memory(device, program.guaranteed_peak_nbytes) as memory:
        executor = Executor(late_step(step, runtime), memory, tell=told)
        executor.adopt(program)
        assert not any(result.replayed for result in train(executor, 4))
        ((what, detail),) = told.said
    assert what == "not_replayed"
    assert detail["reason"].startswith("it would hold ")
    device.close()


def test_a_device_that_opens_no_recording_runs_the_job_op_by_op(one_thread, monkeypatch):
    step, told = s.small_step(), Told()
    runtime, device = open_late("lazy", can_record=True)

    def fail():
        raise RuntimeError("CUDA driver error: invalid argument")

    monkeypatch.setattr(runtime, "open_tape", fail)
    with open_memory(device, AMPLE) as memory:
        executor = Executor(late_step(step, runtime), memory, tell=told)
        executor.adopt(swapping_program(step))
        assert not any(result.replayed for result in train(executor, 4))
        assert_equal_states(executor.state(), s.expected_state(4, SEED))
        ((what, detail),) = told.said
        assert (what, detail["reason"]) == (
            "not_replayed",
            "RuntimeError: CUDA driver error: invalid argument",
        )
    device.memory.validate()
    device.close()
