"""Results of kernels that lie in memory otherwise than capture was told."""

import dataclasses
import logging

import pytest
import torch

from tensile_db.capture.step import View
from tensile_db.errors import InvalidPlan
from tensile_db.graph import Op, Phase
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.results import Relayout
from tests.played.fake_device import FakeDevice
from tests.steps import small_step as s
from tests.steps.small_runs import assert_equal_states, open_memory, swapping_program, train

OP = Op(
    id=7,
    target="aten.odd.default",
    phase=Phase.FORWARD,
    reads=(),
    writes=(3,),
    workspace_nbytes=0,
    flops=0,
    moved_nbytes=24,
    recomputable=True,
)
#: 2 x 3 float32, rows first.
ROWS_FIRST = View(tensor=3, dtype=torch.float32, size=(2, 3), stride=(3, 1), offset=0)


@pytest.fixture
def device():
    return FakeDevice()


def of_columns_first():
    return torch.arange(6.0).reshape(3, 2).t()


def fit(device, result, *, view=ROWS_FIRST, nbytes=24, budget_nbytes=1000, op=OP):
    """Fit a result whose captured bytes are charged; return it and the most that was held."""
    account = device.memory.open_account(1, budget_nbytes)
    account.charge(nbytes)
    results = [None, result]
    Relayout(device, account).fit(op, view, nbytes, results, 1)
    assert (len(results), account.used_nbytes) == (2, nbytes)
    return results[1], account.peak_nbytes


def with_odd_layout(step, op):
    """Return the step with an op whose kernel makes its result columns first."""
    calls = list(step.calls)
    kernel = calls[op].function
    calls[op] = dataclasses.replace(calls[op], function=lambda *args: kernel(*args).t().contiguous().t())
    return dataclasses.replace(step, calls=tuple(calls))


@pytest.mark.parametrize("program", [s.plain_program, swapping_program])
def test_a_training_whose_kernel_lays_its_result_out_otherwise_has_the_same_bits(device, caplog, program):
    step = with_odd_layout(s.small_step(), s.MM1)
    with open_memory(device) as memory, caplog.at_level(logging.WARNING):
        executor = Executor(step, memory)
        executor.adopt(program(step))
        train(executor, 3)
        assert_equal_states(executor.state(), s.expected_state(3, seed=11))
    (record,) = caplog.records
    assert record.message == (
        "job 1: op 1 (aten.mm.default) makes tensor 4 with strides (1, 4) where (16, 1) was captured;"
        " its 256 bytes are copied in every iteration"
    )


def test_later_calls_read_the_strides_that_were_captured(device):
    seen = []
    step = with_odd_layout(s.small_step(), s.MM1)
    calls = list(step.calls)
    calls[s.RELU] = dataclasses.replace(
        calls[s.RELU], function=lambda h: seen.append(h.stride()) or h.relu_()
    )
    step = dataclasses.replace(step, calls=tuple(calls))
    with open_memory(device) as memory:
        executor = Executor(step, memory)
        executor.adopt(s.plain_program(step))
        train(executor, 2)
    assert seen == [(16, 1), (16, 1)]


def test_a_copy_is_charged_beside_the_result_while_both_are_there(device):
    result, peak_nbytes = fit(device, of_columns_first())
    assert (result.stride(), result.tolist()) == ((3, 1), [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]])
    assert peak_nbytes == 48


def test_without_room_for_two_the_result_goes_by_way_of_the_host(device):
    result, peak_nbytes = fit(device, of_columns_first(), budget_nbytes=47)
    assert (result.stride(), result.tolist()) == ((3, 1), [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]])
    assert peak_nbytes == 24


def test_a_small_result_in_a_large_storage_leaves_it(device):
    result, peak_nbytes = fit(device, torch.arange(60.0)[6:12].reshape(2, 3))
    assert (result.untyped_storage().nbytes(), result.tolist()) == (24, [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]])
    assert peak_nbytes == 24


def test_strides_of_single_elements_are_set_without_a_copy(device):
    view = dataclasses.replace(ROWS_FIRST, size=(1, 6), stride=(6, 1))
    made = torch.arange(6.0).as_strided((1, 6), (1, 1))
    result, peak_nbytes = fit(device, made, view=view)
    assert (result.stride(), result.data_ptr(), peak_nbytes) == ((6, 1), made.data_ptr(), 24)


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (torch.zeros(3, 2), r"as float32\[3, 2\], but float32\[2, 3\] was captured"),
        (torch.zeros(2, 3, dtype=torch.int32), r"as int32\[2, 3\], but float32\[2, 3\] was captured"),
    ],
)
def test_another_shape_or_dtype_is_refused(device, result, complaint):
    with pytest.raises(InvalidPlan, match=complaint):
        fit(device, result)


def test_a_layout_whose_elements_share_their_place_is_refused(device):
    view = dataclasses.replace(ROWS_FIRST, stride=(0, 1))
    with pytest.raises(InvalidPlan, match="nothing can be copied into"):
        fit(device, torch.zeros(2, 3), view=view, nbytes=12)


@pytest.mark.parametrize(("workspace_nbytes", "most_nbytes"), [(0, 48), (10, 38), (24, 24), (100, 24)])
def test_a_copy_takes_the_place_of_the_kernels_workspace_which_is_charged_already(
    device, workspace_nbytes, most_nbytes
):
    op = dataclasses.replace(OP, workspace_nbytes=workspace_nbytes)
    fitted, peak_nbytes = fit(device, of_columns_first(), op=op)
    assert (fitted.stride(), peak_nbytes) == ((3, 1), most_nbytes)
