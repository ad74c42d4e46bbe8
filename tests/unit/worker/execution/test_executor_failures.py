"""An executor whose iterations break off, are refused or stopped."""

import dataclasses

import pytest
import torch

from tensile_db.errors import DeviceLost, DriverOutOfMemory, InvalidPlan, JobCancelled, KernelFailed
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import Executor
from tests import driver_errors as e
from tests.played.fake_device import FakeDevice
from tests.steps import small_step as s
from tests.steps.small_runs import open_memory, swapping_program, train


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def step():
    return s.small_step()


def test_a_failing_kernel_is_named_and_its_cause_kept(device, step):
    def broken(*args):
        raise RuntimeError("no such luck")

    calls = list(step.calls)
    calls[s.GW2] = dataclasses.replace(calls[s.GW2], function=broken)
    step = dataclasses.replace(step, calls=tuple(calls))
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(swapping_program(step))
        with pytest.raises(KernelFailed, match=r"op 6 \(aten.mm.default\) failed: no such luck") as failure:
            train(executor, 1)
        assert str(failure.value.__cause__) == "no such luck"
        with pytest.raises(AssertionError, match="broke off"):
            executor.state()
        with pytest.raises(AssertionError, match="broke off"):
            train(executor, 1)
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)


@pytest.mark.parametrize("raised", [e.cublas(), e.triton(), e.invalid(), e.without_number(), e.capturing()])
def test_what_a_device_that_goes_on_refuses_an_op_is_the_ops_failure(device, step, raised):
    def refused(*args):
        raise raised

    calls = list(step.calls)
    calls[s.GW2] = dataclasses.replace(calls[s.GW2], function=refused)
    step = dataclasses.replace(step, calls=tuple(calls))
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(swapping_program(step))
        with pytest.raises(KernelFailed, match=r"op 6 \(aten.mm.default\) failed: (CUDA|Triton)"):
            train(executor, 1)
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)


def test_closing_after_a_failure_waits_for_no_copy_and_leaves_nothing_behind(step):
    def broken(*args):
        raise RuntimeError("no such luck")

    calls = list(step.calls)
    calls[s.MM2] = dataclasses.replace(calls[s.MM2], function=broken)
    step = dataclasses.replace(step, calls=tuple(calls))
    # The copy of h, 256 bytes, would take an hour and more.
    device = CpuDevice(memory_nbytes=1 << 20, threads=1, d2h_bytes_per_s=1, h2d_bytes_per_s=1 << 30)
    memory = open_memory(device)
    executor = Executor(step, memory)
    executor.adopt(swapping_program(step))
    with pytest.raises(KernelFailed):
        train(executor, 1)
    assert device.memory.used_nbytes > 0
    memory.close()
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)
    device.close()


def test_a_result_of_another_shape_is_refused(device, step):
    calls = list(step.calls)
    calls[s.MM1] = dataclasses.replace(calls[s.MM1], function=lambda x, w: torch.mm(x, w)[:3].clone())
    step = dataclasses.replace(step, calls=tuple(calls))
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(s.plain_program(step))
        with pytest.raises(
            InvalidPlan, match=r"made tensor 4 as float32\[3, 16\], but float32\[4, 16\] was captured"
        ):
            train(executor, 1)


def test_a_job_told_to_stop_stops_between_two_ops(device, step):
    asked = []

    def should_stop():
        asked.append(True)
        return len(asked) == 5

    with open_memory(device) as memory:
        executor = Executor(step, memory, should_stop=should_stop)
        executor.adopt(s.plain_program(step))
        with pytest.raises(JobCancelled):
            train(executor, 1)
        assert len(asked) == 5
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)


def test_a_batch_of_another_shape_is_refused_and_leaves_nothing_behind(device, step):
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(s.plain_program(step))
        with pytest.raises(AssertionError, match="a batch of shape"):
            executor.run_iteration([torch.zeros(4, 9)])
    assert device.memory.used_nbytes == 0


@pytest.mark.parametrize(
    ("raised", "loss", "error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Try 2 GiB."), None, DriverOutOfMemory, "2 GiB"),
        (e.no_memory(), None, DriverOutOfMemory, "CUDA error: out of memory"),
        (e.lost(), e.lost(), DeviceLost, "illegal memory access"),
        (e.no_memory(), e.lost(), DeviceLost, "illegal memory access"),
        (e.cublas(), e.lost(), DeviceLost, "access was encountered, first seen as: CUDA error: CUBLAS"),
        (e.triton(), e.driver(), DeviceLost, "launch failure, first seen as: Triton Error"),
    ],
)
def test_a_failing_device_is_no_fault_of_the_op_at_which_it_shows(device, step, raised, loss, error, said):
    def fails(*args):
        device.loss = loss
        raise raised

    calls = list(step.calls)
    calls[s.GW2] = dataclasses.replace(calls[s.GW2], function=fails)
    step = dataclasses.replace(step, calls=tuple(calls))
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(swapping_program(step))
        with pytest.raises(error, match=said) as failure:
            train(executor, 1)
        assert failure.value.hint
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)
