"""OverFeat's fast model.

Source: Sermanet et al., OverFeat (2014), table 1; section 3.1 for dropout.
"""

import torch
from torch import nn


class OverFeat(nn.Module):
    """Five convolutions, three of them pooled, and three linear layers, for images of 231 pixels."""

    def __init__(self, *, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, 11, stride=4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(96, 256, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(256, 512, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(512, 1024, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(1024, 1024, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(1024 * 6 * 6, 3072),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(3072, 4096),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(4096, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images: (batch, 3, 231, 231); returns (batch, classes)."""
        scores: torch.Tensor = self.classifier(self.features(images))
        return scores
