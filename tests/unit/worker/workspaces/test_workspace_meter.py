"""Ops run apart to see what they hold beyond their tensors."""

from dataclasses import replace

import pytest
import torch

from tensile_db.worker.workspaces.meter import WorkspaceMeter
from tests.late.runs import open_late
from tests.late.step import late_step
from tests.steps import small_step as s
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

ROOM = 1 << 20


def products(call, results_nbytes):
    return 100 + results_nbytes if "mm" in str(call.function) else 0


@pytest.fixture
def opened():
    runtime, device = open_late("kernels first", workspace=products)
    yield runtime, device
    assert (device.memory.used_nbytes, runtime.held_nbytes) == (0, 0)
    device.close()


def measured(step, runtime, device, room_nbytes=ROOM):
    meter = WorkspaceMeter(late_step(step, runtime), device, room_nbytes=room_nbytes)
    ops = [op.id for op in step.graph.ops if step.calls[op.id].function is not None]
    try:
        return {op: meter.workspace_nbytes(op) for op in ops}
    finally:
        meter.close()


def test_what_kernels_hold_beyond_results_is_told_op_by_op(opened):
    found = measured(s.small_step(), *opened)
    assert {op: nbytes for op, nbytes in found.items() if nbytes} == {
        s.MM1: 100 + 256,
        s.MM2: 100 + 48,
        s.GW2: 100 + 192,
        s.GD: 100 + 256,
        s.GW1: 100 + 512,
    }


def test_what_the_first_call_keeps_is_nobodys_workspace(opened):
    runtime, _ = opened
    kept = []

    def keeping(call, results_nbytes):
        if not kept:
            kept.append(runtime.allocate(1000))
        return products(call, results_nbytes)

    runtime.workspace = keeping
    assert measured(s.small_step(), *opened)[s.MM1] == 100 + 256
    kept.clear()


def test_the_larger_of_two_ways_to_run_counts(opened):
    step = s.small_step()
    calls = list(step.calls)
    x, w1 = calls[s.MM1].args
    calls[s.MM1] = replace(calls[s.MM1], recompute_args=(x, w1))
    ways = iter([10, 10, 10, 70, 30, 30])
    opened[0].workspace = lambda call, nbytes: next(ways)
    meter = WorkspaceMeter(
        late_step(replace(step, calls=tuple(calls)), opened[0]), opened[1], room_nbytes=ROOM
    )
    # Warmed up with 10 and with 70, which does not count.
    assert meter.workspace_nbytes(s.MM1) == 30
    meter.close()


def test_an_op_without_room_for_its_tensors_is_not_run(opened):
    # 4 x 8, 8 x 16 and 4 x 16 numbers.
    assert measured(s.small_step(), *opened, room_nbytes=895)[s.MM1] is None
    assert measured(s.small_step(), *opened, room_nbytes=896)[s.MM1] == 356


def test_an_op_that_fails_or_finds_no_memory_is_not_known_and_leaves_nothing(opened, caplog):
    for error, said in ((torch.OutOfMemoryError, "none left"), (RuntimeError, "zeros will not do")):

        def fail(call, results_nbytes, error=error, said=said):
            raise error(said)

        opened[0].workspace = fail
        assert set(measured(s.small_step(), *opened).values()) == {None}
    assert "none left" in caplog.text
    assert "zeros will not do" in caplog.text


def noting_integers(call, seen):
    """Return the call, which notes what whole numbers its kernel is given, if it has one."""

    def noting(*args, **kwargs):
        given = [each for each in args if isinstance(each, torch.Tensor)]
        seen.extend(each.clone() for each in given if each.dtype == torch.int64)
        return call.function(*args, **kwargs)

    return call if call.function is None else replace(call, function=noting)


def test_whole_numbers_are_zero_so_that_indices_are_valid(opened):
    """As a loss's classes are: memory that is handed out here would hold -1, and NaN."""
    seen = []
    step, _ = capture_once(training_of("mlp", "sgd", 4))
    calls = tuple(noting_integers(call, seen) for call in step.calls)
    found = measured(replace(step, calls=calls), *opened, room_nbytes=1 << 28)
    assert None not in found.values()
    # Of the loss and of its gradient, each run three times.
    assert [each.tolist() for each in seen] == [[0] * 4] * 6
