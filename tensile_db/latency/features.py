"""What the latency of an op depends on: its kind, the sizes of what it works on, its parameters.

Pure.  Source: TENSILE section IV-A (inputs of the prediction model).
Differs: sizes are logarithms; the op's arithmetic and memory traffic, which follow from the others, are
inputs, too, since a small network learns a power law from them and hardly a product of five dimensions.
"""

from dataclasses import dataclass

#: How a feature's name begins.  A size may lie a little outside what was measured; a parameter may not.
SIZE, PARAMETER = "size.", "parameter."

#: Every op has these.
FLOPS, MOVED_NBYTES = f"{SIZE}flops", f"{SIZE}moved_nbytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFeatures:
    """An op as a latency model sees it; equal ones take equally long on an idle device."""

    #: The ATen operator, and the dtype of what it works on unless that is float32: "aten.add_.Tensor:int64".
    #: Ops of one kind have equal names.
    kind: str
    #: "size.ARGUMENT.DIMENSION", "size.flops", "size.moved_nbytes", "parameter.ARGUMENT"; ascending.
    names: tuple[str, ...]
    #: By name; sizes as their logarithms to base 2.
    values: tuple[float, ...]
    #: As in graph.Op, for the roofline.
    flops: int
    moved_nbytes: int


def is_size(name: str) -> bool:
    """Tell a size from a parameter by the feature's name."""
    return name.startswith(SIZE)
