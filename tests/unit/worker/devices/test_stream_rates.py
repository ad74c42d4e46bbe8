import itertools

import torch

from tensile_db.worker.devices.stream_rates import _link, measure, measure_mark_ns
from tests.late.runtime import LateRuntime


def test_two_directions_at_once_are_a_duplex_link_at_the_pace_of_both():
    assert _link(100, 100, 110) == (110, 110, True)


def test_directions_that_only_take_turns_are_no_duplex_link():
    assert _link(100, 120, 210) == (100, 120, False)


def test_every_rate_is_measured_and_all_memory_is_let_go_of():
    runtime = LateRuntime("kernels first", memory_nbytes=1 << 28)
    spec = measure(runtime, name="late", memory_nbytes=123, side=64)
    assert (spec.name, spec.memory_nbytes, spec.concurrency) == ("late", 123, 1)
    assert spec.d2h_bytes_per_s > 0
    assert spec.h2d_bytes_per_s > 0
    assert spec.flops_per_s > 0
    assert spec.memory_bytes_per_s > 0
    assert spec.op_overhead_ns > 0
    assert torch.is_inference_mode_enabled() is False


def test_a_mark_takes_what_lies_between_two_while_the_device_is_held_back(monkeypatch):
    runtime = LateRuntime("lazy")
    # A late runtime takes a microsecond for each item.
    assert measure_mark_ns(runtime) == 1000
    assert len(runtime.held_back_ns) == 1
    # Somebody else is at work now and then, and then all the time.
    really = runtime.elapsed_ns
    others_ns = itertools.cycle([0, 0, 10**9])
    monkeypatch.setattr(runtime, "elapsed_ns", lambda begin, end: next(others_ns) + really(begin, end))
    assert measure_mark_ns(runtime) == 1000
    monkeypatch.setattr(runtime, "elapsed_ns", lambda begin, end: 10**9)
    assert measure_mark_ns(runtime) == 0
