"""Salus' table 3: 15 networks, each in three sizes.

Sizes that the paper leaves open are those of its published code (SymbioticLab/Salus, `benchmarks/driver` and
`tests/test_tf`; speech is Fathom's, rdadolf/fathom).  What a network is, its own module says.

Source: Salus table 3 and appendix 7.1.
Differs: vgg, resnet, googlenet, alexnet and inception are torchvision's and timm's.  superres is of 64 x 64
pixels, enlarged threefold.  speech hears every second of 300 frames, where Fathom pads TIMIT's to 1,566.
Under the name of seq2seq the code trains a language model of PTB; here that is the decoder, and there is an
encoder of the same size, as in the paper that Salus cites for it.  seq2seq's gradients are not clipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from tensile_db.bench.networks.overfeat import OverFeat
from tensile_db.bench.networks.seq2seq import Seq2Seq
from tensile_db.bench.networks.speech import DeepSpeech
from tensile_db.bench.networks.superres import SuperResolution
from tensile_db.bench.networks.vae import Vae
from tensile_db.bench.networks.workloads import WORKLOADS, Workload

_CLASSES = 1000
_OVERFEAT_PIXELS = 231
#: Of superres: pixels each way, and how many times as many come out.
_SMALL, _ENLARGED = 64, 3
#: MNIST's pixels; the layers' width, the code's, and of what is dropped out (`vae.py` and `test_vae.py`).
_VAE_PIXELS, _VAE_WIDTH, _VAE_LATENT, _VAE_DROPOUT = 784, 500, 20, 0.1
#: Every second of 300 frames; Fathom's coefficients, width, and TIMIT's 61 phonemes and none of them.
_FRAMES, _COEFFICIENTS, _SPEECH_WIDTH, _PHONEMES = 150, 26, 1024, 62
#: Deep Speech, section 2.1: 5 to 10 %.
_SPEECH_DROPOUT = 0.05
_PTB_WORDS, _PTB_LAYERS, _PTB_BATCH = 10_000, 2, 20
#: Width, words of a sentence, dropout (`ptb_word_lm.py`).
_SEQ2SEQ = {"small": (200, 20, 0.0), "medium": (650, 35, 0.5), "large": (1500, 35, 0.65)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A network in one of its sizes."""

    network: str
    workload: Workload
    batch: int


def _torchvision(name: str, batch: int, scale: int) -> nn.Module:
    from torchvision import models

    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model: nn.Module = getattr(models, name)(num_classes=_CLASSES, **options)
    return model


def _overfeat(batch: int, scale: int) -> nn.Module:
    return OverFeat(classes=_CLASSES)


def _superres(batch: int, scale: int) -> nn.Module:
    return SuperResolution(enlarged=_ENLARGED)


def _vae(batch: int, scale: int) -> nn.Module:
    return Vae(pixels=_VAE_PIXELS, width=_VAE_WIDTH, latent=_VAE_LATENT, dropout=_VAE_DROPOUT)


def _speech(batch: int, scale: int) -> nn.Module:
    return DeepSpeech(
        coefficients=_COEFFICIENTS, width=_SPEECH_WIDTH, labels=_PHONEMES, dropout=_SPEECH_DROPOUT
    )


def _seq2seq(size: str, batch: int, scale: int) -> nn.Module:
    width, length, dropout = _SEQ2SEQ[size]
    return Seq2Seq(vocabulary=_PTB_WORDS, width=width, depth=_PTB_LAYERS, length=length, dropout=dropout)


def _images(name: str, title: str) -> Workload:
    return Workload(
        name=name,
        title=title,
        row_shape=(3, 224, 224),
        build=partial(_torchvision, name),
        scales=False,
    )


def _translation(size: str) -> Workload:
    _, length, _ = _SEQ2SEQ[size]
    return Workload(
        name=f"seq2seq_{size}",
        title=f"Seq2seq, {size}",
        row_shape=(2 * length,),
        build=partial(_seq2seq, size),
        targets_per_row=length,
        features_dtype=torch.int64,
        scales=False,
    )


#: Those whose sizes are batches.
_BATCHES: Mapping[str, tuple[Workload, tuple[int, ...]]] = {
    "alexnet": (_images("alexnet", "AlexNet"), (25, 50, 100)),
    "googlenet": (_images("googlenet", "GoogLeNet"), (25, 50, 100)),
    "inception3": (WORKLOADS["inception_v3"], (25, 50, 100)),
    "inception4": (WORKLOADS["inception_v4"], (25, 50, 75)),
    "overfeat": (
        Workload(
            name="overfeat",
            title="OverFeat",
            row_shape=(3, _OVERFEAT_PIXELS, _OVERFEAT_PIXELS),
            build=_overfeat,
            scales=False,
        ),
        (25, 50, 100),
    ),
    "resnet50": (WORKLOADS["resnet50"], (25, 50, 75)),
    "resnet101": (WORKLOADS["resnet101"], (25, 50, 75)),
    "resnet152": (WORKLOADS["resnet152"], (25, 50, 75)),
    "vgg11": (_images("vgg11", "VGG-11"), (25, 50, 100)),
    "vgg16": (WORKLOADS["vgg16"], (25, 50, 100)),
    "vgg19": (WORKLOADS["vgg19"], (25, 50, 100)),
    "vae": (
        Workload(
            name="vae",
            title="VAE",
            row_shape=(_VAE_PIXELS,),
            build=_vae,
            targets_per_row=_VAE_PIXELS,
            scales=False,
        ),
        (64, 128, 256),
    ),
    "superres": (
        Workload(
            name="superres",
            title="Superres",
            row_shape=(1, _SMALL, _SMALL),
            build=_superres,
            targets_per_row=(_SMALL * _ENLARGED) ** 2,
            scales=False,
        ),
        (32, 64, 128),
    ),
    "speech": (
        Workload(
            name="speech",
            title="Speech",
            row_shape=(_FRAMES, _COEFFICIENTS),
            build=_speech,
            targets_per_row=_FRAMES,
            scales=False,
        ),
        (25, 50, 75),
    ),
}

#: All 45, in the table's order, by the paper's names for them: alexnet_25, seq2seq_small.
SALUS: Mapping[str, Sized] = {
    f"{network}_{batch}": Sized(network=network, workload=workload, batch=batch)
    for network, (workload, batches) in _BATCHES.items()
    for batch in batches
} | {
    f"seq2seq_{size}": Sized(network="seq2seq", workload=_translation(size), batch=_PTB_BATCH)
    for size in _SEQ2SEQ
}
