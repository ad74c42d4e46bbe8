"""U-Net: down through pooling, up again, and at each level what was there on the way down.

Source: Ronneberger et al. 2015, with padded convolutions and batch normalization, as it is trained today.
"""

from itertools import pairwise

import torch
from torch import nn


def _two_convolutions(channels_in: int, channels_out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (channels_in, channels_out):
        layers += [
            nn.Conv2d(channels, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Classifies every pixel."""

    def __init__(self, *, channels: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _two_convolutions(before, after) for before, after in zip((3, *channels), channels, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        deep_first = channels[::-1]
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(deep, shallow, 2, stride=2) for deep, shallow in pairwise(deep_first)
        )
        self.up = nn.ModuleList(_two_convolutions(deep, shallow) for deep, shallow in pairwise(deep_first))
        self.head = nn.Conv2d(channels[0], classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images: (batch, 3, height, width); returns (batch * height * width, classes)."""
        passed = []
        x = images
        for index, level in enumerate(self.down):
            x = level(self.pool(x) if index else x)
            passed.append(x)
        for rise, level, beside in zip(self.rise, self.up, passed[-2::-1], strict=True):
            x = level(torch.cat([beside, rise(x)], 1))
        scores: torch.Tensor = self.head(x).permute(0, 2, 3, 1).flatten(0, 2)
        return scores
