"""In which order the elements of images and of convolutions' weights lie in memory.

Where a convolution's weight has its channels last, PyTorch's kernels lay out its result so, too, and the ops
after it follow: what comes in may lie as it does.  Results differ in rounding, as other kernels compute them.

Source: pytorch's tutorial "Channels Last Memory Format"; aten/src/ATen/native/ConvUtils.h.
"""

from collections.abc import Mapping

import torch
from torch import nn

#: By what the option "memory_format" may be.
MEMORY_FORMATS: Mapping[str, torch.memory_format] = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}


def laid_out(model: nn.Module, name: str | None) -> nn.Module:
    """Return the model with its four-dimensional parameters laid out so; None, "contiguous": as it is."""
    # Some models lay out weights themselves, and are right to.
    if name in (None, "contiguous"):
        return model
    moved: nn.Module = model.to(memory_format=MEMORY_FORMATS[name])
    return moved
