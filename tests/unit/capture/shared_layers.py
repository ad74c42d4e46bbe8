"""A network whose layers serve more than once."""

import torch
from torch import nn

from tests.unit.capture.eager import CLASSES


class SharedAndGrouped(nn.Module):
    """One layer used three times, so that its gradients add up, and a group normalization."""

    def __init__(self):
        super().__init__()
        self.widen = nn.Linear(8, 16)
        self.shared = nn.Linear(16, 16)
        self.norm = nn.GroupNorm(4, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = self.widen(x)
        for _ in range(3):
            x = torch.relu(self.shared(x)) + x
        return self.head(self.norm(x))
