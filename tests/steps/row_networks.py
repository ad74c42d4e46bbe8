"""Small networks with weights whose gradients are made in parts, where parts are small."""

import timm
import torch
from torch import nn
from torch.nn import functional

from tensile_db.capture import large_gradients, parts
from tests.steps.bitwise_runs import Training

#: 1024 rows of 7 x 7 x 64 floats have 16 such parts, 256 of them four, and of 3 x 28 x 28 or of 2048, too.
PART_NBYTES = 4 * 64 * 7 * 7 * 64


def have_parts_of(monkeypatch, nbytes=PART_NBYTES):
    """Have what is large made in parts of at most so many bytes."""
    monkeypatch.setattr(parts, "PART_NBYTES", nbytes)
    monkeypatch.setattr(large_gradients, "LEAST_NBYTES", 2 * nbytes)


def vgg():
    """A classifier of convolutions."""
    return timm.models.vgg.VGG(cfg=[8, "M", 64, "M"], num_classes=5, drop_rate=0.5, mlp_ratio=1 / 4)


def products():
    """Matrix products, one without a bias."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 28 * 28, 256),
        nn.ReLU(),
        nn.Linear(256, 2048),
        nn.ReLU(),
        nn.Linear(2048, 256, bias=False),
        nn.Linear(256, 5),
    )


class OwnWeight(nn.Module):
    """Its weight is also what it is given, with nothing to be learned from that."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 64, 7, 7) / 100)

    def forward(self, images):
        made = functional.conv2d(self.weight.detach()[: len(images)], self.weight)
        return made.flatten(1)[:, :5] + images.flatten(1)[:, :5]


def row_training(network, optimizer):
    """Return what trains a network on batches of four images of 28 x 28."""

    def build():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(network()).train()

    return Training(build=build, shape=(4, 3, 28, 28), optimizer=optimizer)
