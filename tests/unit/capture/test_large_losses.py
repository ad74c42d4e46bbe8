"""The loss over many classes, captured in two steps: the same bits, ignored rows included."""

import pytest
import torch

from tensile_db.capture.large_losses import LEAST_CLASSES, loss_of_picked
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

nll_loss = torch.ops.aten.nll_loss_forward.default

IGNORED = -100
MEAN, SUM = 1, 2


@pytest.mark.parametrize("reduction", [MEAN, SUM])
@pytest.mark.parametrize("rows", [1, 37, 4000])
def test_loss_and_weight_of_all_rows_keep_their_bits(rows, reduction):
    generator = torch.Generator().manual_seed(rows)
    scores = torch.randn(rows, LEAST_CLASSES, generator=generator)
    target = torch.randint(0, LEAST_CLASSES, (rows,), generator=generator)
    target[1::3] = IGNORED
    got = loss_of_picked(scores, target, None, reduction, IGNORED)
    want = nll_loss(scores, target, None, reduction, IGNORED)
    assert [value.item() for value in got] == [value.item() for value in want]


@pytest.mark.parametrize(
    ("classes", "weight", "reduction", "ignored"),
    [
        (LEAST_CLASSES - 1, None, MEAN, IGNORED),
        (LEAST_CLASSES, torch.ones(LEAST_CLASSES), MEAN, IGNORED),
        (LEAST_CLASSES, None, 0, IGNORED),
        (LEAST_CLASSES, None, MEAN, 0),
    ],
)
def test_other_losses_are_left_alone(classes, weight, reduction, ignored):
    scores, target = torch.zeros(2, classes), torch.zeros(2, dtype=torch.int64)
    assert loss_of_picked(scores, target, weight, reduction, ignored) is NotImplemented


@pytest.mark.slow
def test_the_scores_of_a_transformer_are_split_by_rows_wherever_they_are_used():
    graph = capture_once(training_of("transformer", "adam", 8))[0].graph
    largest = max(tensor.nbytes for tensor in graph.tensors if not tensor.persistent)
    scores = {tensor.id for tensor in graph.tensors if tensor.nbytes == largest}
    users = [op for op in graph.ops if scores & {*op.reads, *op.writes}]
    assert "aten.gather.default" in {op.target for op in users}
    assert all(any(s.axis == "batch" for s in op.splittings) for op in users)
