"""Which errors are a lost device's, which a refused call's and which an op's own, whatever they look like."""

import dataclasses

import numpy as np
import pytest
import torch

from tensile_db.errors import DeviceLost, DriverOutOfMemory, HostOutOfMemory, KernelFailed
from tensile_db.worker.devices.driver_errors import is_of_its_call
from tensile_db.worker.execution import held_ops
from tensile_db.worker.execution.device_failures import device_failures
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.held_numbers import HeldVariant
from tensile_db.worker.workspaces.meter import WorkspaceMeter
from tests import driver_errors as e
from tests.late.runs import AMPLE, Told, open_late
from tests.late.runtime import LateRuntime
from tests.late.step import late_step
from tests.late.tape import LateTape
from tests.played.fake_device import FakeDevice
from tests.steps import small_step as s
from tests.steps.bitwise_runs import capture, tight_plan
from tests.steps.small_networks import training_of
from tests.steps.small_runs import open_memory, train


def asked(loss=None):
    """Return the context in which a device is asked about what fails; loss: what it answers."""
    return device_failures(FakeDevice(loss=loss))


@pytest.fixture
def late():
    """A device that puts everything off and takes iterations down, and its runtime, to be lost."""
    runtime, device = open_late("lazy", can_record=True)
    yield runtime, device
    runtime.lost = None
    device.close()


def test_a_device_with_much_to_do_is_not_lost_and_has_done_it_when_it_is_asked(late):
    runtime, device = late
    ran = []
    with device.computing():
        runtime.launch(lambda: ran.append("kernel"))
        assert ran == []
        assert device.find_loss() is None
        assert ran == ["kernel"]


@pytest.mark.parametrize("answer", [e.lost(), e.without_number(), e.driver()])
def test_a_device_whose_every_call_fails_is_lost(late, answer):
    runtime, device = late
    runtime.lost = answer
    assert device.find_loss() is answer


@pytest.mark.parametrize("answer", [e.no_memory(), e.capturing(), e.driver_error("wrong thread", 908)])
def test_a_device_without_memory_for_an_event_or_beside_a_capture_is_not_lost(late, answer):
    runtime, device = late
    runtime.lost = answer
    assert device.find_loss() is None


@pytest.mark.parametrize("code", [1, 9, 700, 719, 899, 909, 999, None])
def test_other_errors_do_not_tell_by_themselves_that_the_device_goes_on(code):
    assert not is_of_its_call(e.driver_error("something", code))
    assert not is_of_its_call(RuntimeError("CUDA error: out of memory"))


@pytest.mark.parametrize("raised", [e.lost(), e.without_number(), e.no_memory(), e.cublas(), e.driver()])
def test_whatever_shows_first_of_a_lost_device_it_is_lost(raised):
    with pytest.raises(DeviceLost, match="an illegal memory access") as failure, asked(e.lost()):
        raise raised
    assert str(raised) in failure.value.message
    assert failure.value.message.count("illegal memory access") == 1
    assert failure.value.__cause__ is raised


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), DriverOutOfMemory),
        (e.no_memory(), DriverOutOfMemory),
        (e.capturing(), KernelFailed),
        (e.invalid(), KernelFailed),
        (e.without_number(), KernelFailed),
    ],
)
def test_a_device_that_refuses_a_call_and_goes_on_is_not_lost(raised, error):
    with pytest.raises(error, match=str(raised)) as failure, asked():
        raise raised
    assert failure.value.__cause__ is raised


def test_errors_that_are_none_of_the_devices_pass():
    defect = RuntimeError("dictionary changed size during iteration")
    with pytest.raises(RuntimeError) as failure, asked():
        raise defect
    assert failure.value is defect
    full = HostOutOfMemory(wanted_nbytes=1, used_nbytes=0, limit_nbytes=0)
    with pytest.raises(HostOutOfMemory) as failure, asked(e.lost()):
        raise full
    assert failure.value is full


def failing_at(step, op, runtime, error, *, loses, is_time=lambda: True):
    """Return the step with an op that fails when it is time, and takes the device with it if it `loses`."""
    calls = list(late_step(step, runtime).calls)
    function = calls[op].function

    def fails(*args, **kwargs):
        if not is_time():
            return function(*args, **kwargs)
        runtime.lost = e.lost() if loses else None
        raise error

    calls[op] = dataclasses.replace(calls[op], function=fails)
    return dataclasses.replace(step, calls=tuple(calls))


@pytest.mark.slow
@pytest.mark.parametrize("raised", [e.cublas, e.cudnn, e.triton, e.driver, e.no_memory, e.lost])
@pytest.mark.parametrize("when", ["op by op", "taken down", "replayed"])
def test_a_device_that_is_lost_at_an_op_is_lost_however_the_op_is_run(one_thread, late, raised, when):
    runtime, device = late
    iteration, told = [0], Told()

    def is_time():
        in_passage = getattr(runtime.current, "passage", None) is not None
        return {"op by op": 1, "taken down": 3, "replayed": 5}[when] == iteration[0] and (
            when != "taken down" or in_passage
        )

    # The rate of this one changes: it is handed over by itself between passages.
    op = s.W2 if when == "replayed" else s.GW1
    step = failing_at(s.small_step(), op, runtime, raised(), loses=True, is_time=is_time)
    with open_memory(device, AMPLE) as memory:
        executor = Executor(step, memory, tell=told)
        executor.adopt(s.plain_program(step))
        for iteration[0] in range(1, 6):
            if is_time() or (when == "taken down" and iteration[0] == 3):
                break
            assert train(executor, 1, first=iteration[0])[0].replayed == (iteration[0] >= 3)
        with pytest.raises(DeviceLost, match="an illegal memory access"):
            train(executor, 1, first=iteration[0])
        runtime.lost = None
    # A plan is not given up for what was no fault of its.
    assert [what for what, _ in told.said] == (["replayed"] if when == "replayed" else [])
    assert (device.memory.used_nbytes, device.host.used_nbytes, runtime.open_tapes) == (0, 0, [])


def test_a_device_that_is_lost_while_changing_numbers_are_taken_down_is_lost(one_thread, late, monkeypatch):
    runtime, device = late
    training = training_of("mlp", "adam", 4)
    step, state = capture(training)
    program = tight_plan(step, device, 1.0).program

    def fails(*args):
        runtime.lost = e.lost()
        raise e.triton()

    variant = HeldVariant("failing", held=np.float32, run=fails)
    monkeypatch.setattr(held_ops, "held_variant", lambda function, on: variant)
    batches = list(training.batches())
    with open_memory(device, AMPLE, state=state) as memory:
        executor = Executor(late_step(step, runtime), memory)
        executor.adopt(program)
        for update, batch in enumerate(batches[:2], 1):
            executor.run_iteration(batch, update)
        with pytest.raises(DeviceLost, match="an illegal memory access"):
            executor.run_iteration(batches[2], 3)
        runtime.lost = None


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["upload", "download", "replay"])
@pytest.mark.parametrize(
    ("raised", "error"), [(e.no_memory, DriverOutOfMemory), (e.invalid, KernelFailed), (e.lost, DeviceLost)]
)
def test_what_fails_beside_ops_ends_its_job_alone_unless_the_device_is_lost(
    one_thread, late, monkeypatch, failing, raised, error
):
    runtime, device = late

    def fails(*args, **kwargs):
        runtime.lost = e.lost() if error is DeviceLost else None
        raise raised()

    with open_memory(device, AMPLE) as memory:
        executor = Executor(late_step(s.small_step(), runtime), memory)
        executor.adopt(s.plain_program(s.small_step()))
        assert train(executor, 4)[-1].replayed
        with monkeypatch.context() as patched:
            patched.setattr(LateTape if failing == "replay" else LateRuntime, failing, fails)
            with pytest.raises(error, match="CUDA error"):
                train(executor, 1, first=5)
        runtime.lost = None
    # Others go on.
    with open_memory(device, AMPLE, job=2) as memory:
        executor = Executor(late_step(s.small_step(), runtime), memory)
        executor.adopt(s.plain_program(s.small_step()))
        assert train(executor, 4)[-1].replayed
    assert (device.memory.used_nbytes, device.host.used_nbytes, runtime.open_tapes) == (0, 0, [])


@pytest.mark.parametrize("raised", [e.cublas, e.no_memory, e.lost])
def test_no_workspace_is_measured_on_a_lost_device(late, raised):
    runtime, device = late
    step = failing_at(s.small_step(), s.MM1, runtime, raised(), loses=True)
    meter = WorkspaceMeter(step, device, room_nbytes=1 << 20)
    with pytest.raises(DeviceLost, match="an illegal memory access"):
        meter.workspace_nbytes(s.MM1)
    runtime.lost = None
    meter.close()
    assert device.memory.used_nbytes == 0


@pytest.mark.parametrize("raised", [e.cublas, e.no_memory, e.capturing])
def test_a_workspace_is_not_known_where_the_device_goes_on(late, raised):
    runtime, device = late
    step = failing_at(s.small_step(), s.MM1, runtime, raised(), loses=False)
    meter = WorkspaceMeter(step, device, room_nbytes=1 << 20)
    assert meter.workspace_nbytes(s.MM1) is None
    meter.close()
