"""What the sections train, most telling first; and toys in its place for a dry run."""

import torch
from torch import nn

from tensile_db.bench.networks.transformers import Gpt
from tensile_db.bench.networks.workloads import PAPER_FIVE, Workload, workload

_TOY_VOCABULARY, _TOY_TOKENS = 64, 16


def _toy_cnn(batch: int, scale: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, 10),
    )


def _toy_gpt(batch: int, scale: int) -> nn.Module:
    return Gpt(width=16, depth=2, heads=2, vocabulary=_TOY_VOCABULARY, length=_TOY_TOKENS)


_TOYS = (
    Workload(name="toy_cnn", title="CNN", row_shape=(3, 16, 16), build=_toy_cnn),
    Workload(
        name="toy_gpt",
        title="GPT",
        row_shape=(_TOY_TOKENS,),
        build=_toy_gpt,
        targets_per_row=_TOY_TOKENS,
        features_dtype=torch.int64,
    ),
)


def correctness_cases(*, quick: bool) -> list[tuple[Workload, int]]:
    """Return (network, batch) whose bits are compared: the papers' five, a ViT, a decoder."""
    if quick:
        return [(toy, 4) for toy in _TOYS]
    return [
        (workload(name), 4) for name in ("resnet50", "vgg16", "vit", "gpt", *PAPER_FIVE[1:3], "densenet121")
    ]


def frontier_cases(*, quick: bool) -> list[tuple[Workload, int]]:
    """Return (network, batch) whose times and peaks are measured, the first ones first."""
    if quick:
        return [(toy, 4) for toy in _TOYS]
    small = [(workload(name), 16) for name in ("resnet50", "vgg16", "vit")]
    large = [(workload(name), 64) for name in ("resnet50", "vgg16", "vit")]
    rest = [(workload(name), 16) for name in ("inception_v3", "densenet121", "inception_v4")]
    last = [(workload(name), 64) for name in ("inception_v3", "densenet121", "inception_v4")]
    return [*small, (workload("gpt"), 8), *large, *rest, *last]


def replay_cases(*, quick: bool) -> list[tuple[Workload, int, str]]:
    """Return (network, batch, optimizer) whose iterations are replayed: those of small kernels first.

    Adam's take numbers that change.
    """
    if quick:
        return [(_TOYS[0], 4, "adam"), (_TOYS[1], 4, "momentum")]
    chosen = {"resnet50": ("adam", "momentum"), "densenet121": ("momentum",), "vit": ("adamw",)}
    small = [(workload(name), 16, optimizer) for name in chosen for optimizer in chosen[name]]
    return [*small, (workload("vgg16"), 16, "momentum")]


def compiled_cases(*, quick: bool) -> list[tuple[Workload, int]]:
    """Return (network, batch) that torch.compile is given: it takes up to a minute for each."""
    if quick:
        return [(toy, 4) for toy in _TOYS]
    return [(workload("vit"), 16), (workload("resnet50"), 16)]


def shared_case(*, quick: bool) -> tuple[Workload, int]:
    """Return the network of several jobs at once."""
    return (_TOYS[0], 4) if quick else (workload("resnet50"), 16)


def formats_case(*, quick: bool) -> tuple[Workload, int]:
    """Return the network that is trained in every precision and memory format."""
    return (_TOYS[0], 4) if quick else (workload("resnet50"), 64)


def capacity_cases(*, quick: bool) -> list[Workload]:
    """Return the networks whose largest batch is looked for."""
    return [_TOYS[0]] if quick else [workload("resnet50"), workload("vit")]


def find(name: str) -> Workload:
    """Return a network by name, toys included."""
    for toy in _TOYS:
        if toy.name == name:
            return toy
    return workload(name)
