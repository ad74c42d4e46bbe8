"""The loss over many classes, in two steps: each row's own score, and the sum of these.

`nll_loss` reads one score of each row and adds them up.  Its sum needs all rows at once, but the scores need
not be there for it: picked first, row by row, they are one column, and the scores can be in parts.  What is
added up, and in which order, stays the same, and so do the bits (`nll_loss_out_frame` in
aten/src/ATen/native/LossNLL.cpp, and the kernels in cuda/Loss.cu, go by rows).
"""

from typing import Any

import torch

aten = torch.ops.aten

#: Of fewer classes, the scores are small beside what made them.
LEAST_CLASSES = 4096
#: `at::Reduction::None`.
_NO_REDUCTION = 0


def loss_of_picked(
    scores: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: int
) -> Any:
    """Do what nll_loss_forward does, in two steps.

    scores: (rows, classes); target: int64 (rows,).
    Returns NotImplemented where it is not worth that, or would not be the same: weights go by class, of which
    what is picked has one.
    """
    plain = weight is None and reduction != _NO_REDUCTION and ignore_index < 0
    if not plain or scores.dim() != 2 or scores.shape[1] < LEAST_CLASSES:
        return NotImplemented
    # An ignored row has a score picked that is not looked at, and is still ignored afterwards.
    column = aten.clamp_min.default(target, 0)
    picked = aten.gather.default(scores, 1, aten.unsqueeze.default(column, 1))
    only_column = aten.clamp_max.default(target, 0)
    return aten.nll_loss_forward.default(picked, only_column, None, reduction, ignore_index)
