"""Networks that factor matrices train to eager PyTorch's bits, and fail at a singular one as eager's do."""

import pytest
import torch
from torch import nn

from tensile_db.errors import KernelFailed
from tests.steps.bitwise_runs import (
    Training,
    capture,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import seeded

SHAPE = (64, 3, 4, 8)


class OfMatrices(nn.Module):
    """A network that makes a matrix of each row; subclasses say what is made of these, in `made`."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(96, 64)
        self.last = nn.Linear(64, 5)

    def forward(self, images):
        return self.last(self.made(self.first(images.flatten(1)).view(-1, 8, 8)).flatten(1))


class Solved(OfMatrices):
    def made(self, matrices):
        return torch.linalg.solve(matrices + 3 * torch.eye(8), matrices)


class Factored(OfMatrices):
    def made(self, matrices):
        return torch.linalg.cholesky(matrices @ matrices.mT + torch.eye(8))


class Inverted(OfMatrices):
    def made(self, matrices):
        return torch.linalg.inv(matrices + 3 * torch.eye(8))


class Decomposed(OfMatrices):
    def made(self, matrices):
        return torch.linalg.eigvals(matrices).abs().unsqueeze(-1) * matrices


class Singular(OfMatrices):
    def made(self, matrices):
        return torch.linalg.solve(matrices * 0, matrices)


def trained(make_device, network, share, policy):
    training = Training(build=lambda: seeded(network), shape=SHAPE, optimizer="adam")
    step, state = capture(training)
    device = make_device(1 << 30)
    program = tight_plan(step, device, share, policy).program
    return training, train_here(device, step, state, program, training.batches())


@pytest.mark.parametrize("network", [Solved, Factored, Inverted, Decomposed])
@pytest.mark.parametrize(("share", "policy"), [(1.0, "vanilla"), (0.8, "auto")])
def test_matrices_are_factored_as_by_eager(make_device, network, share, policy):
    training, (got, results) = trained(make_device, network, share, policy)
    eager, losses = train_eagerly(training)
    assert (differing(got, eager), losses_of(results)) == ([], losses)


@pytest.mark.parametrize(("share", "policy"), [(1.0, "vanilla"), (0.8, "auto")])
def test_a_singular_matrix_fails_the_iteration(make_device, share, policy):
    with pytest.raises(KernelFailed, match=r"solve: .* singular"):
        trained(make_device, Singular, share, policy)
