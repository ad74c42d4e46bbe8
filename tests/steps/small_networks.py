"""Small networks with one of everything that is hard: dropout, batch norm, attention, a large loss."""

from dataclasses import replace
from functools import cache

import timm
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensile_db.bench.networks.gcn import Gcn
from tensile_db.bench.networks.transformers import Transformer
from tensile_db.capture.large_losses import LEAST_CLASSES
from tensile_db.capture.networks.freezing import frozen_modules
from tensile_db.capture.networks.memory_format import laid_out
from tensile_db.capture.schedules import LearningRateSchedule
from tests.steps.bitwise_runs import Training

#: Of the Transformer, and the tokens each way.
VOCABULARY, TOKENS = LEAST_CLASSES + 3, 16
#: Of the GCN, whose batch is one graph.
NODE_FEATURES = 12


def mlp():
    return nn.Sequential(
        nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)
    )


def vgg():
    model = timm.models.vgg.VGG(
        cfg=[8, "M", 16, 16, "M", 32, "M"], num_classes=5, drop_rate=0.5, mlp_ratio=0.02
    )
    assert any(isinstance(module, nn.Dropout) and module.p == 0.5 for module in model.modules())
    return model


def densenet():
    """One dense block of six layers."""
    return timm.models.densenet.DenseNet(growth_rate=16, block_config=(6,), num_classes=5)


def transformer():
    """With a vocabulary so large that the loss is captured in two steps."""
    return Transformer(width=16, depth=1, heads=2, vocabulary=VOCABULARY, length=TOKENS)


class Rows(nn.Module):
    """A network of an LSTM that reads an image row by row, and then back."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3 * 32, 24, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True)
        self.last = nn.Linear(48, 5)

    def forward(self, images):
        return self.last(self.lstm(images.permute(0, 2, 1, 3).flatten(2))[0].mean(1))


def norm_first():
    """A batch norm of the images themselves, whose gradients nobody wants."""
    return nn.Sequential(
        nn.BatchNorm2d(3),
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 30 * 30, 5),
    )


class Checkpointed(nn.Module):
    """Computes convolutions and batch norms again in the backward pass, as its author wants it."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
        self.first = nn.Conv2d(3, 16, 3)
        self.inner = nn.Sequential(*layers, nn.Conv2d(16, 16, 3), nn.ReLU())
        self.last = nn.Linear(16 * 28 * 28, 5)

    def forward(self, images):
        return self.last(checkpoint(self.inner, self.first(images), use_reentrant=False).flatten(1))


def gcn(nodes):
    """Messages along edges, each of which is a row of indices."""
    return Gcn(nodes=nodes, edges_per_node=5, features=NODE_FEATURES, width=40, depth=3, classes=5)


#: Sides of images.  The small VGG lays smaller ones than 56 pixels out anew, which no GPU does in order.
PIXELS, PIXELS_WITHOUT_RESIZING = 32, 56

NETWORKS = {
    "mlp": (nn.Flatten, mlp),
    "vgg with dropout": (nn.Identity, vgg),
    "vgg without resizing": (nn.Identity, vgg),
    "resnet": (nn.Identity, lambda: timm.create_model("test_resnet", num_classes=5)),
    "densenet": (nn.Identity, densenet),
    "vit": (nn.Identity, lambda: timm.create_model("test_vit", num_classes=5, img_size=32)),
    "transformer": (nn.Identity, transformer),
    "lstm": (nn.Identity, Rows),
    "norm first": (nn.Identity, norm_first),
    "checkpointed": (nn.Identity, Checkpointed),
}


def build(network):
    first, rest = NETWORKS[network]
    return seeded(lambda: nn.Sequential(first(), rest()))


def seeded(build):
    """Return a new network in training mode, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().train()


@cache
def training_of(network, optimizer, size):
    """Return what is trained on batches of `size`; the same object each time, for `capture_once`."""
    if network == "transformer":
        return Training(
            build=lambda: build(network),
            shape=(size, 2 * TOKENS),
            optimizer=optimizer,
            vocabulary=VOCABULARY,
            targets_per_row=TOKENS,
        )
    if network == "gcn":
        return Training(
            build=lambda: seeded(lambda: gcn(size)), shape=(size, NODE_FEATURES), optimizer=optimizer
        )
    pixels = PIXELS_WITHOUT_RESIZING if network == "vgg without resizing" else PIXELS
    return Training(build=lambda: build(network), shape=(size, 3, pixels, pixels), optimizer=optimizer)


def with_schedule(training, name="cosine"):
    """Return the training, of six iterations, with a learning rate that warms up and goes by a schedule."""
    schedule = LearningRateSchedule(name=name, warmup_updates=2, updates=6)
    return replace(training, schedule=schedule, iterations=schedule.updates)


def with_channels_last(training):
    """Return the same training of a network whose convolutions' weights have their channels last."""
    return replace(training, build=lambda: laid_out(training.build(), "channels_last"))


def with_frozen_backbone(training):
    """Return the same training of a "resnet" of which only the last layer is trained."""

    def build():
        network = training.build()
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(".fc." in name)
        for module in frozen_modules(network):
            module.eval()
        return network

    return replace(training, build=build, is_frozen=True)


def steep():
    """Return a network whose gradients are infinite in float16 while the scale is as at first."""
    model = training_of("mlp", "momentum", 4).build()
    next(model.parameters()).data.mul_(60)
    return model
