"""What the benchmarks train: the papers' networks and a few beyond them, by name.

    convolutional   vgg16, vgg19, resnet50, resnet101, resnet152, inception_v3, inception_v4, densenet121, at
                    their own image size, 1,000 classes; unet, 256 x 256 pixels, 2 classes each
    tokens          bert (base, 128 tokens, 20 of them masked), transformer (base, 256 tokens each way), gpt
                    (GPT-2's smallest, 1,024 tokens)
    images, tokens  vit (base, patches of 16)
    a graph         gcn (3 layers; 10,584 nodes with 7 edges each for every row of the batch, so that
                    a batch of 16 is of ogbn-arxiv's size)

Each is an nn.Module that is trained with cross entropy.  Models are built on the meta device: a capture looks
at layouts only, and a network whose weights exceed the machine's memory can be planned for all the same.
Others come from architecture_workloads.py and own.py; those of them that read values are built on the host.

Source: TENSILE section V-A, Capuchin table 1, TSPLIT section VI-A.  Neither says how long its sequences are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tensile_db.bench.networks.gcn import Gcn
from tensile_db.bench.networks.transformers import Bert, Gpt, Transformer
from tensile_db.bench.networks.unet import UNet
from tensile_db.bench.networks.widening import widened
from tensile_db.errors import InvalidRequest, UnknownName

#: As many as ImageNet has, for which the architectures were made.
CLASSES = 1000
#: BERT's and GPT-2's vocabularies; of IWSLT one of usual size.
_BERT_VOCABULARY, _GPT_VOCABULARY, _TRANSLATION_VOCABULARY = 30522, 50257, 32000
_BERT_TOKENS, _BERT_MASKED, _TRANSLATION_TOKENS, _GPT_TOKENS = 128, 20, 256, 1024
_UNET_PIXELS = 256
#: A node of ogbn-arxiv has seven edges on average, 128 features and one of 40 classes.
_NODES_PER_ROW, _EDGES_PER_NODE, _NODE_FEATURES, _NODE_CLASSES = 10_584, 7, 128, 40

#: The paper's five (TENSILE section V-A), in its tables' order.
PAPER_FIVE = ("vgg16", "inception_v3", "inception_v4", "resnet50", "densenet121")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A network and the shape of what it is trained on."""

    name: str
    #: As the papers write it.
    title: str
    #: Of one row of features.
    row_shape: tuple[int, ...]
    #: (batch, parameter scale) -> the network, on the default device, or on the host where it must be.
    build: Callable[[int, int], nn.Module]
    #: Rows of features for each unit of the batch.
    rows: int = 1
    targets_per_row: int = 1
    features_dtype: torch.dtype = torch.float32
    #: Whether more channels, or hidden units, can be asked for.
    scales: bool = True
    #: Whether what was captured can be kept: the name and what is installed say what the network is.
    can_be_kept: bool = True

    def module(self, batch: int, scale: int = 1) -> nn.Module:
        """Return the network for a batch, with `scale` times its channels or hidden units.

        Raises InvalidRequest where it has no such thing, or is one's own and cannot be made.
        """
        if scale != 1 and not self.scales:
            raise InvalidRequest(
                f"{self.name} is not scaled by its parameters",
                hint="Only the benchmarks' own networks of plain convolutions and Transformers are.",
            )
        with torch.device("meta"):
            return self.build(batch, scale)


def _timm(name: str, batch: int, scale: int) -> nn.Module:
    import timm

    # VGG's two hidden classifier layers drop half, as in capture/networks/timm_models.py.
    options: dict[str, Any] = {"drop_rate": 0.5} if name.startswith("vgg") else {}
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)
    return widened(model, scale, image_channels=3, classes=CLASSES)


def _bert(batch: int, scale: int) -> nn.Module:
    return Bert(
        width=768 * scale,
        depth=12,
        heads=12 * scale,
        vocabulary=_BERT_VOCABULARY,
        length=_BERT_TOKENS,
        masked=_BERT_MASKED,
    )


def _transformer(batch: int, scale: int) -> nn.Module:
    return Transformer(
        width=512 * scale,
        depth=6,
        heads=8 * scale,
        vocabulary=_TRANSLATION_VOCABULARY,
        length=_TRANSLATION_TOKENS,
    )


def _gpt(batch: int, scale: int) -> nn.Module:
    return Gpt(width=768 * scale, depth=12, heads=12 * scale, vocabulary=_GPT_VOCABULARY, length=_GPT_TOKENS)


def _unet(batch: int, scale: int) -> nn.Module:
    return UNet(channels=tuple(scale * channels for channels in (64, 128, 256, 512, 1024)), classes=2)


def _gcn(batch: int, scale: int) -> nn.Module:
    return Gcn(
        nodes=batch * _NODES_PER_ROW,
        edges_per_node=_EDGES_PER_NODE,
        features=_NODE_FEATURES,
        width=256 * scale,
        depth=3,
        classes=_NODE_CLASSES,
    )


def _images(name: str, title: str, size: int, *, scales: bool = True) -> Workload:
    return Workload(
        name=name, title=title, row_shape=(3, size, size), build=partial(_timm, name), scales=scales
    )


_ALL = (
    _images("vgg16", "VGG-16", 224),
    _images("vgg19", "VGG-19", 224),
    _images("resnet50", "ResNet-50", 224),
    _images("resnet101", "ResNet-101", 224),
    _images("resnet152", "ResNet-152", 224),
    _images("inception_v3", "InceptionV3", 299),
    _images("inception_v4", "InceptionV4", 299),
    _images("densenet121", "DenseNet", 224, scales=False),
    Workload(
        name="bert",
        title="BERT",
        row_shape=(_BERT_TOKENS,),
        build=_bert,
        targets_per_row=_BERT_MASKED,
        features_dtype=torch.int64,
    ),
    Workload(
        name="transformer",
        title="Transformer",
        row_shape=(2 * _TRANSLATION_TOKENS,),
        build=_transformer,
        targets_per_row=_TRANSLATION_TOKENS,
        features_dtype=torch.int64,
    ),
    Workload(
        name="vit",
        title="ViT",
        row_shape=(3, 224, 224),
        build=partial(_timm, "vit_base_patch16_224"),
        scales=False,
    ),
    Workload(
        name="gpt",
        title="GPT-2",
        row_shape=(_GPT_TOKENS,),
        build=_gpt,
        targets_per_row=_GPT_TOKENS,
        features_dtype=torch.int64,
    ),
    Workload(name="gcn", title="GCN", row_shape=(_NODE_FEATURES,), build=_gcn, rows=_NODES_PER_ROW),
    Workload(
        name="unet",
        title="U-Net",
        row_shape=(3, _UNET_PIXELS, _UNET_PIXELS),
        build=_unet,
        targets_per_row=_UNET_PIXELS**2,
    ),
)

#: The benchmarks' own.
WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in _ALL}

#: What a command was asked for besides.
_added: dict[str, Workload] = {}


def add(workload: Workload) -> None:
    """Let `workload` return another one by its name, too."""
    _added[workload.name] = workload


def is_known(name: str) -> bool:
    """Tell whether there is a workload of this name."""
    return name in WORKLOADS or name in _added


def workload(name: str) -> Workload:
    """Return the workload called `name`; raise UnknownName, suggesting the nearest."""
    if not is_known(name):
        raise UnknownName("workload", name, {*WORKLOADS, *_added})
    return WORKLOADS.get(name) or _added[name]


def title_of(name: str) -> str:
    """Return what a workload is called in tables: in results of other runs there may be any."""
    return WORKLOADS[name].title if name in WORKLOADS else name
