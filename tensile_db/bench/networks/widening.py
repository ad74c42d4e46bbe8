"""A convolutional network with k times its channels, whatever it is: TSPLIT's parameter scale.

Source: TSPLIT section VI-B, "if the original channel size is c1 and the parameter scale number is k, it has
c1 x k channels after scaling".
"""

import torch
from torch import nn


def widened(model: nn.Module, k: int, *, image_channels: int, classes: int) -> nn.Module:
    """Widen every layer in place, but for the image's channels and the classes; return the model.

    The layers' weights are made anew on the meta device.  Convolutions must be dense.
    """
    if k > 1:
        for module in list(model.modules()):
            for name, child in module.named_children():
                setattr(module, name, _widened(child, k, image_channels, classes))
    return model


def _widened(layer: nn.Module, k: int, image_channels: int, classes: int) -> nn.Module:
    def inner(count: int, edge: int) -> int:
        return count if count == edge else count * k

    with torch.device("meta"):
        match layer:
            case nn.Conv2d():
                assert layer.groups == 1, "a grouped convolution has no k times its channels"
                return nn.Conv2d(
                    inner(layer.in_channels, image_channels),
                    layer.out_channels * k,
                    layer.kernel_size,  # type: ignore[arg-type]  # always a pair after construction
                    stride=layer.stride,  # type: ignore[arg-type]
                    padding=layer.padding,  # type: ignore[arg-type]
                    dilation=layer.dilation,  # type: ignore[arg-type]
                    bias=layer.bias is not None,
                )
            case nn.BatchNorm2d():
                # timm's norms with an activation are subclasses with more arguments: only sizes change.
                layer.num_features *= k
                for name in ("weight", "bias"):
                    if getattr(layer, name) is not None:
                        setattr(layer, name, nn.Parameter(torch.empty(layer.num_features)))
                layer.running_mean = torch.empty(layer.num_features)
                layer.running_var = torch.empty(layer.num_features)
                return layer
            case nn.Linear():
                return nn.Linear(
                    layer.in_features * k, inner(layer.out_features, classes), bias=layer.bias is not None
                )
    return layer
