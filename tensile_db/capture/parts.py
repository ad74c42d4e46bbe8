"""Large tensors of optimizer state in parts, so that no update needs it all at once.

An optimizer's ops are elementwise: done part by part along the storage they give the same bits, and what is
swapped is a part instead of a tensor of hundreds of megabytes.  The parameter stays whole, since convolutions
and matrix products need it whole, and so does its gradient, unless it can be made in parts, too
(`gradient_rows.py`).  Outside of a captured step state has its whole names; a part's is the whole one and its
half-open range of elements, "optimizer_state/fc.weight/exp_avg[0:8388608]".

Source: TSPLIT section IV (splitting where an op is exact), for the optimizer's ops.
"""

import re
from dataclasses import dataclass

import torch

from tensile_db.capture.step import View

#: A part's bytes; what has fewer than two parts stays whole.  At 24 GB/s a copy of one takes 1.4 ms.
PART_NBYTES = 16 * 2**20

_NAME = re.compile(r"(?P<whole>.*)\[(?P<begin>\d+):(?P<end>\d+)\]", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The elements [begin, end) of a dense tensor, as its storage orders them."""

    begin: int
    end: int

    def name(self, whole: str) -> str:
        """Return the part's name, given the whole tensor's."""
        return f"{whole}[{self.begin}:{self.end}]"

    def window(self, whole: View) -> View:
        """Return the part of a dense view, as a flat one."""
        return View(
            tensor=whole.tensor,
            dtype=whole.dtype,
            size=(self.end - self.begin,),
            stride=(1,),
            offset=whole.offset + self.begin,
        )


def parts_of(view: View) -> tuple[Part, ...]:
    """Return the parts of a dense view; none where it stays whole."""
    count = 1
    for size in view.size:
        count *= size
    step = PART_NBYTES // view.dtype.itemsize
    if count < 2 * step:
        return ()
    return tuple(Part(begin=begin, end=min(begin + step, count)) for begin in range(0, count, step))


def split_name(name: str) -> tuple[str, Part | None]:
    """Return the whole tensor's name, and the part if `name` is a part's."""
    match = _NAME.fullmatch(name)
    if match is None or not name.startswith("optimizer_state/"):
        return name, None
    return match["whole"], Part(begin=int(match["begin"]), end=int(match["end"]))


def parameter_of(whole: str) -> str:
    """Return the name of the parameter that a tensor of optimizer state belongs to, and is laid out as."""
    return "parameter/" + whole.removeprefix("optimizer_state/").rpartition("/")[0]


def laid_out(value: torch.Tensor, like: View) -> torch.Tensor:
    """Return the value with the strides of `like`, itself where it has them."""
    if value.stride() == like.stride:
        return value
    return torch.empty_strided(like.size, like.stride, dtype=like.dtype).copy_(value)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of a dense tensor as a flat view, in the storage's order."""
    return tensor.as_strided((tensor.numel(),), (1,))
