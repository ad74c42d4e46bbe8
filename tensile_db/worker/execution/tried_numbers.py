"""Numbers on which it is tried whether one way to compute gives the bits of another.

Source: ours.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

#: Numbers that a way is tried with, enough for each way of rounding to show.
_NUMBERS = 32
#: Elements of tensors that are tried together.
SIZES = (1, 1027, 1 << 14)


def drawn_numbers(random: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Return a zero and other numbers, of all magnitudes in float32's range and both signs."""
    numbers = random.standard_normal(count) * 10.0 ** random.uniform(-25, 10, count)
    numbers[0] = 0.0
    return numbers


def tried_numbers(random: np.random.Generator) -> list[float]:
    """Return some drawn ones, and those of which kernels may know better."""
    return [*drawn_numbers(random, _NUMBERS)[1:].tolist(), 1.0, -1.0]


def drawn_tensors(
    random: np.random.Generator, sizes: Sequence[int], device: torch.device
) -> list[torch.Tensor]:
    """Return float32 tensors of so many elements each."""
    return [torch.from_numpy(drawn_numbers(random, size).astype(np.float32)).to(device) for size in sizes]


def without_zeros(tensor: torch.Tensor) -> torch.Tensor:
    """Return it to divide by: sums with infinities are no numbers, whose bits say nothing."""
    return torch.where(tensor == 0, 1.0, tensor)


def same_bits(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Tell whether float32 tensors are the same, bit for bit."""
    return all(
        torch.equal(one.view(torch.int32), other.view(torch.int32))
        for one, other in zip(some, others, strict=True)
    )
