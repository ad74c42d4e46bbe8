"""A job's calls find TF32 allowed or forbidden as the job wants, whatever others want meanwhile."""

import gc
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch

from tensile_db.capture.networks.randomness import DEFAULT_GENERATOR_LOCK
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.devices.cuda.runtime import allow_tf32
from tensile_db.worker.devices.float32_mode import Float32Mode, may_shorten
from tensile_db.worker.execution import calls
from tensile_db.worker.execution.executor import Executor
from tests.at_once import at_once
from tests.late.runs import open_late
from tests.late.step import late_step
from tests.steps import small_step as s
from tests.steps.small_runs import SEED, assert_equal_states, open_memory, train

aten = torch.ops.aten


def noting(step, runtime, seen):
    """Return the step with functions that note the setting when they are called."""

    def noted(function):
        def call(*args, **kwargs):
            seen.append(runtime.tf32)
            return function(*args, **kwargs)

        return call

    calls = (
        call if call.function is None else replace(call, function=noted(call.function)) for call in step.calls
    )
    return replace(step, calls=tuple(calls))


@pytest.mark.parametrize("tf32", [True, False])
def test_a_jobs_calls_find_the_setting_that_its_step_wants(one_thread, tf32):
    runtime, device = open_late("lazy")
    seen = []
    step = noting(late_step(s.small_step(), runtime), runtime, seen)
    with open_memory(device) as memory:
        executor = Executor(replace(step, tf32=tf32), memory)
        executor.adopt(s.plain_program(s.small_step()))
        train(executor, 2)
        assert_equal_states(executor.state(), s.expected_state(2, SEED))
    assert set(seen) == {tf32}


def test_two_threads_that_want_it_otherwise_never_see_each_others_setting():
    setting, changes = [None], []

    def allow(allowed):
        setting[0] = allowed
        changes.append(allowed)

    mode, wrong = Float32Mode(allow), []
    begin = threading.Barrier(2)

    def run(tf32):
        def look():
            before = setting[0]
            # Another thread would have the time to change it.
            threading.Event().wait(0.0001)
            wrong.extend(value for value in (before, setting[0]) if value is not tf32)

        call = mode.bound(look, tf32=tf32)
        begin.wait()
        for _ in range(300):
            call()

    at_once(run, (True, False))
    assert wrong == []
    assert len(changes) > 1


def test_the_setting_is_made_again_after_a_change_that_failed():
    attempts = []

    def allow(allowed):
        attempts.append(allowed)
        if len(attempts) == 1:
            raise RuntimeError("no device")

    call = Float32Mode(allow).bound(lambda: "ran", tf32=True)
    with pytest.raises(RuntimeError, match="no device"):
        call()
    assert (call(), call(), attempts) == ("ran", "ran", [True, True])


class ToldLock:
    """The generator's lock, which tells when it is asked for."""

    def __init__(self):
        self.asked = threading.Event()

    def __enter__(self):
        self.asked.set()
        DEFAULT_GENERATOR_LOCK.acquire()

    def __exit__(self, *exception):
        DEFAULT_GENERATOR_LOCK.release()


def test_who_waits_for_the_generator_keeps_nobody_else_from_computing(one_thread, monkeypatch):
    # As long as a network is built, or a passage taken down, whose calls take the other lock.
    mode, lock = Float32Mode(lambda allowed: None), ToldLock()
    monkeypatch.setattr(calls, "DEFAULT_GENERATOR_LOCK", lock)
    monkeypatch.setattr(CpuDevice, "in_float32", lambda self, function, tf32: mode.bound(function, tf32=tf32))
    device, step, states = CpuDevice(memory_nbytes=1 << 20, threads=1), s.small_step(), []

    def draw():
        with open_memory(device) as memory:
            executor = Executor(step, memory)
            executor.adopt(s.plain_program(step))
            train(executor, 1)
            states.append(executor.state())

    others = mode.bound(partial(torch.mm, torch.ones(2, 2), torch.ones(2, 2)), tf32=False)
    threads = [threading.Thread(target=work, daemon=True) for work in (draw, others)]
    # What is left of other tests' late runtimes is let go of under that lock, by whoever collects it.
    gc.collect()
    with DEFAULT_GENERATOR_LOCK:
        threads[0].start()
        assert lock.asked.wait(60)
        threads[1].start()
        threads[1].join(60)
        assert not threads[1].is_alive()
    threads[0].join(60)
    (state,) = states
    assert_equal_states(state, s.expected_state(1, SEED))
    device.close()


def test_functions_that_go_element_by_element_are_called_without_the_lock():
    _, device = open_late("lazy")
    alone = [aten.add.Tensor, aten.relu_.default, aten.threshold_backward.default]
    assert [device.in_float32(function, tf32=True) for function in alone] == alone
    shortened = [aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default]
    shortened += [aten.convolution_backward.default, aten._scaled_dot_product_efficient_attention.default]
    assert all(map(may_shorten, shortened))


def test_cudas_setting_is_of_matrix_products_and_of_convolutions():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for allowed in (True, False):
            allow_tf32(allowed)
            assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (
                allowed,
                allowed,
            )
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
