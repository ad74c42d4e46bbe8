"""Equal signatures for calls that need the same, other ones for calls that may not."""

import json
from dataclasses import replace

import pytest
import torch

from tensile_db.worker.workspaces.signatures import step_signatures
from tests.steps import small_step as s
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of


def digests(step):
    return [None if each is None else each.digest for each in step_signatures(step)]


def with_call(step, op, **changes):
    calls = list(step.calls)
    calls[op] = replace(calls[op], **changes)
    return replace(step, calls=tuple(calls))


def test_what_runs_no_kernel_has_no_signature_and_every_other_op_has_one():
    signatures = step_signatures(s.small_step())
    assert [op for op, each in enumerate(signatures) if each is None] == [s.LOAD, s.REPORT]
    assert signatures[s.MM1].kind == "aten.mm.default"


def test_a_signature_is_the_same_in_every_process():
    signature = step_signatures(s.small_step())[s.MM1]
    assert signature.content == {
        "arguments": [
            {"dtype": "float32", "misaligned": 0, "size": [4, 8], "stride": [8, 1]},
            {"dtype": "float32", "misaligned": 0, "size": [8, 16], "stride": [16, 1]},
            {},
        ],
        "results": [
            {"dtype": "float32", "misaligned": 0, "nbytes": 256, "size": [4, 16], "stride": [16, 1]},
        ],
    }
    assert signature.digest == "c5fd22907c56084ba365aa0065b53f130c83be426a3e68bcd38647a92a58bbac"


def test_a_learning_rate_makes_no_difference_and_a_factor_of_one_does():
    step = s.small_step()
    (before, other, one) = (
        digests(with_call(step, s.ADD1 + 1, kwargs={"alpha": alpha}))[s.ADD1 + 1]
        for alpha in (-0.01, -0.5, 1.0)
    )
    assert before == other != one


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": torch.float64},
        {"size": (8, 8)},
        {"stride": (1, 4)},
        {"offset": 1},
    ],
)
def test_dtypes_sizes_strides_and_alignment_make_a_difference(change):
    step = s.small_step()
    x, w1 = step.calls[s.MM1].args
    other = with_call(step, s.MM1, args=(replace(x, **change), w1))
    assert digests(other)[s.MM1] != digests(step)[s.MM1]
    assert digests(other)[s.MM1 + 1 :] == digests(step)[s.MM1 + 1 :]


def test_a_window_that_begins_at_an_aligned_place_is_as_good_as_a_tensor():
    step = s.small_step()
    x, w1 = step.calls[s.MM1].args
    assert digests(with_call(step, s.MM1, args=(replace(x, offset=64), w1))) == digests(step)


def test_tf32_and_what_a_second_run_is_given_make_a_difference():
    step = s.small_step()
    assert digests(replace(step, tf32=True))[s.MM1] != digests(step)[s.MM1]
    again = with_call(step, s.MM1, recompute_args=(*step.calls[s.MM1].args, None))
    assert digests(again)[s.MM1] != digests(step)[s.MM1]


def test_integers_choose_kernels():
    # 0 is not False, nor 1 a float.
    step = s.small_step()
    found = {
        digests(with_call(step, s.LOSS, args=(*step.calls[s.LOSS].args, value)))[s.LOSS]
        for value in (0, 1, 2, False, True, 2.0, None, "a", [0], [1])
    }
    assert len(found) == 10


@pytest.mark.parametrize(
    "network",
    ["vgg with dropout", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("resnet", "vit"))],
)
def test_signatures_of_a_network_are_plain_json_without_addresses(network):
    step, _ = capture_once(training_of(network, "adamw", 4))
    signatures = [each for each in step_signatures(step) if each is not None]
    text = json.dumps([each.content for each in signatures])
    assert "0x" not in text
    assert "object at" not in text
    # Layers of one shape share theirs.
    assert len({each.digest for each in signatures}) < len(signatures)
