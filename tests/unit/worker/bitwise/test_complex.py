"""Networks with complex numbers in them train to eager PyTorch's bits: conjugated where eager's are.

PyTorch notes in a tensor that its numbers are to be conjugated, or negated, when they are read.
"""

import pytest
import torch
from torch import nn

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

SHAPE = (6, 3, 4, 8)


class OfNumbers(nn.Module):
    """A network of rows of 96 numbers; subclasses say what is done to them, in `mixed`."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(96, 16)
        self.last = nn.Linear(16, 5)

    def forward(self, images):
        return self.last(self.mixed(self.first(images.flatten(1))).relu())


class Filtered(OfNumbers):
    """A global filter: real parameters, which the backward pass conjugates (Rao et al., 2021)."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(9, 2) * 0.1)

    def mixed(self, rows):
        spectrum = torch.fft.rfft(rows) * torch.view_as_complex(self.filter)
        return torch.fft.irfft(spectrum, n=16)


class Rotated(OfNumbers):
    """Rotary embeddings by complex numbers (Su et al., 2021): a buffer, conjugated in the backward pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(8), torch.arange(8.0)))

    def mixed(self, rows):
        return torch.view_as_real(torch.view_as_complex(rows.view(-1, 8, 2)) * self.turns).flatten(1)


class Multiplied(OfNumbers):
    """A complex matrix product, whose backward pass conjugates the transposed matrix."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64) * 0.3)

    def mixed(self, rows):
        return torch.view_as_real(torch.view_as_complex(rows.view(-1, 8, 2)) @ self.matrix).flatten(1)


class Negated(OfNumbers):
    """The imaginary part of what is conjugated, which is a negated view."""

    def mixed(self, rows):
        turned = torch.view_as_complex(rows.view(-1, 8, 2)).conj()
        return torch.cat([turned.real, turned.imag], dim=1)


@pytest.mark.parametrize("network", [Filtered, Rotated, Multiplied, Negated])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_complex_numbers_are_conjugated_where_eagers_are(make_device, network, optimizer):
    training = Training(build=lambda: seeded(network), shape=SHAPE, optimizer=optimizer)
    step, state = capture(training)
    device = make_device(1 << 30)
    program = tight_plan(step, device, 1.0, "vanilla").program
    got, results = train_here(device, step, state, program, training.batches())
    eager, losses = train_eagerly(training)
    assert (differing(got, eager), losses_of(results)) == ([], losses)
