"""Networks with complex numbers in them train to eager PyTorch's bits: conjugated where eager's are.

PyTorch notes in a tensor that its numbers are to be conjugated, or negated, when they are read.
"""

import pytest
import torch
from torch import nn

from tensile_db.errors import InvalidRequest
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


class Scaled(OfNumbers):
    """A product with a complex number of Python's, in place, behind a view of what it changes."""

    def mixed(self, rows):
        numbers = torch.view_as_complex(rows.view(-1, 8, 2)) * 1.5
        turned = numbers.conj()
        numbers.mul_(2 + 1j)
        return torch.view_as_real(turned.resolve_conj()).flatten(1)


class Changed(OfNumbers):
    """Changes what it has conjugated, or a part of that, in place."""

    part = staticmethod(torch.conj)

    def mixed(self, rows):
        numbers = torch.view_as_complex(rows.view(-1, 8, 2)) * 1.5
        self.part(numbers).add_(1.0)
        return torch.view_as_real(numbers).flatten(1)


class ChangedInPart(Changed):
    """Changes the imaginary part of it."""

    part = staticmethod(lambda numbers: numbers.conj().imag)


@pytest.mark.parametrize("network", [Changed, ChangedInPart])
def test_a_change_of_what_is_conjugated_when_it_is_read_is_refused(network):
    training = Training(build=lambda: seeded(network), shape=SHAPE, optimizer="sgd")
    with pytest.raises(
        InvalidRequest, match="changes a conjugated view, or a part of it, in place"
    ) as refused:
        capture(training)
    assert refused.value.hint


@pytest.mark.parametrize("network", [Filtered, Rotated, Multiplied, Negated, Scaled])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_complex_numbers_are_conjugated_where_eagers_are(make_device, network, optimizer):
    training = Training(build=lambda: seeded(network), shape=SHAPE, optimizer=optimizer)
    step, state = capture(training)
    device = make_device(1 << 30)
    program = tight_plan(step, device, 1.0, "vanilla").program
    got, results = train_here(device, step, state, program, training.batches())
    eager, losses = train_eagerly(training)
    assert (differing(got, eager), losses_of(results)) == ([], losses)
