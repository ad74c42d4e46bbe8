import time

import numpy as np
import pytest
import torch

from tensile_db.worker.devices.cores import calibrate
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.devices.host_memory import HostPool, new_storage

MS = 1_000_000
#: A copy may end so much early, at the expense of the next one.
EARLY = 400_000


@pytest.fixture
def device():
    """A megabyte takes 10 ms to the host and 5 ms to the device."""
    device = CpuDevice(
        memory_nbytes=1 << 30, threads=1, d2h_bytes_per_s=100_000_000, h2d_bytes_per_s=200_000_000
    )
    yield device
    device.close()


def storage(nbytes, fill=None):
    made = new_storage(nbytes)
    return made if fill is None else made.fill_(fill)


def test_a_copy_takes_the_link_at_least_as_long_as_its_bytes_need(device):
    source, target = storage(2_000_000, 7), storage(2_000_000, 0)
    begin_ns = time.monotonic_ns()
    device.copy_out(1, source, target, 0).wait()
    assert time.monotonic_ns() - begin_ns >= 20 * MS - EARLY
    assert torch.empty(0, dtype=torch.uint8).set_(target).eq(7).all()
    begin_ns = time.monotonic_ns()
    device.copy_in(1, target, source, 0).wait()
    assert time.monotonic_ns() - begin_ns >= 10 * MS - EARLY


def test_copies_of_one_direction_run_one_at_a_time_in_the_order_handed_over(device):
    begin_ns = time.monotonic_ns()
    copies = [device.copy_out(1, storage(1_000_000), storage(1_000_000), 0) for _ in range(3)]
    for copy, least_ns in zip(copies, (10 * MS, 20 * MS, 30 * MS), strict=True):
        copy.wait()
        assert time.monotonic_ns() - begin_ns >= least_ns - EARLY


def test_a_later_copy_of_a_job_waits_for_an_earlier_one_that_must_wait(device):
    begin_ns = time.monotonic_ns()
    device.copy_out(1, storage(1000), storage(1000), 30 * MS)
    device.copy_out(1, storage(1000), storage(1000), 0).wait()
    assert time.monotonic_ns() - begin_ns >= 30 * MS - EARLY


def test_a_copy_starts_no_earlier_than_its_delta(device):
    begin_ns = time.monotonic_ns()
    device.copy_in(1, storage(1000), storage(1000), 40 * MS).wait()
    assert time.monotonic_ns() - begin_ns >= 40 * MS - EARLY


def test_a_copy_that_must_wait_holds_up_no_other_job(device):
    late = device.copy_out(1, storage(1000), storage(1000), 3_600_000 * MS)
    device.copy_out(2, storage(1000), storage(1000), 0).wait()
    late.cancel()


def test_a_simplex_link_serves_one_direction_at_a_time():
    device = CpuDevice(
        memory_nbytes=1 << 20,
        threads=1,
        d2h_bytes_per_s=100_000_000,
        h2d_bytes_per_s=100_000_000,
        duplex=False,
    )
    begin_ns = time.monotonic_ns()
    device.copy_out(1, storage(2_000_000), storage(2_000_000), 0)
    device.copy_in(1, storage(2_000_000), storage(2_000_000), 0).wait()
    assert time.monotonic_ns() - begin_ns >= 40 * MS - EARLY
    device.close()


def test_a_copy_can_be_given_up_while_it_runs_and_before(device):
    running = device.copy_out(1, storage(1_000_000_000), storage(1_000_000_000), 0)
    queued = device.copy_out(1, storage(1000, 1), storage(1000, 0), 0)
    time.sleep(0.01)
    queued.cancel()
    running.cancel()
    assert queued.target.tolist() == [0] * 1000
    # The whole copy would have taken ten seconds; the link is free again.
    begin_ns = time.monotonic_ns()
    device.copy_out(1, storage(1000), storage(1000), 0).wait()
    assert time.monotonic_ns() - begin_ns < 5_000 * MS


def test_closing_gives_up_what_is_queued():
    device = CpuDevice(memory_nbytes=1 << 20, threads=1)
    copy = device.copy_out(1, storage(1000, 1), storage(1000, 0), 3_600_000 * MS)
    device.close()
    copy.wait()
    assert copy.target.tolist() == [0] * 1000


def test_sides_of_different_size_are_refused(device):
    with pytest.raises(AssertionError, match="differ in size"):
        device.copy_out(1, storage(8), storage(9), 0)


def test_an_empty_tensor_is_copied(device):
    device.copy_out(1, storage(0), storage(0), 0).wait()


def test_a_read_only_batch_is_taken_and_one_of_another_type_is_refused(device):
    target = torch.zeros(2, 3)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    rows.flags.writeable = False
    device.fill(target, rows)
    assert target.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    with pytest.raises(TypeError, match="Cannot cast"):
        device.fill(target, rows.astype(np.float64))


def test_a_buffer_serves_the_next_tensor_of_its_size():
    pool = HostPool()
    first = pool.acquire(100)
    address = first.data_ptr()
    pool.release(first)
    del first
    assert (pool.used_nbytes, pool.free_nbytes) == (0, 100)
    assert pool.acquire(200).data_ptr() != address
    assert pool.acquire(100).data_ptr() == address
    assert (pool.used_nbytes, pool.free_nbytes) == (300, 0)


def test_trimming_lets_free_buffers_go_and_keeps_those_in_use():
    pool = HostPool()
    used, free = pool.acquire(100), pool.acquire(100)
    pool.release(free)
    pool.trim()
    assert (pool.used_nbytes, pool.free_nbytes, used.nbytes()) == (100, 0, 100)


@pytest.mark.slow
def test_calibration_finds_plausible_rates():
    rates = calibrate(threads=1)
    assert 100_000_000 < rates.flops_per_s < 100_000_000_000_000
    assert 100_000_000 < rates.memory_bytes_per_s < 10_000_000_000_000
    assert 100 < rates.op_overhead_ns < 10_000_000
