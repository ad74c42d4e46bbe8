"""Small networks with weights whose gradients are made in parts, where parts are small."""

import timm
import torch
from torch import nn

from tensile_db.capture import large_gradients, parts
from tests.bitwise_runs import Training

#: 64 rows of 7 x 7 x 32 floats have four such parts, 4096 of 64 ten; 320 of 192 three, 1280 of 320 sixteen.
PART_NBYTES = 110_000


def parts_of(monkeypatch, nbytes=PART_NBYTES):
    """Have what is large made in parts of at most so many bytes."""
    monkeypatch.setattr(parts, "PART_NBYTES", nbytes)
    monkeypatch.setattr(large_gradients, "LEAST_NBYTES", 2 * nbytes)


def vgg():
    """A classifier of convolutions, on images of 28 x 28."""
    return timm.models.vgg.VGG(cfg=[8, "M", 32, "M"], num_classes=5, drop_rate=0.5, mlp_ratio=1 / 64)


def products():
    """Matrix products, one without a bias, on images of 8 x 8."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 8 * 8, 320),
        nn.ReLU(),
        nn.Linear(320, 1280, bias=False),
        nn.Linear(1280, 5),
    )


def row_training(network, optimizer):
    """Return what trains a network on batches of four."""

    def build():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(network()).train()

    side = 28 if network is vgg else 8
    return Training(build=build, shape=(4, 3, side, side), optimizer=optimizer)
