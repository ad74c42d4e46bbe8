"""The feed-forward networks of Salus' table 3: AlexNet to InceptionV4, and super-resolution.

Source: Salus table 3, which names them and their batch sizes.
Differs: overfeat, vae, speech and seq2seq are left out; superres is ESPCN on 64 x 64 pixels, enlarged
threefold, which Salus does not say; each of its pixels is one of two classes.
"""

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from tensile_db.bench.networks.workloads import WORKLOADS, Workload

_CLASSES = 1000
_SMALL, _ENLARGED = 64, 3


class SuperResolution(nn.Module):
    """ESPCN: three convolutions of the small image, then one whose channels become pixels.

    Source: Shi et al., Real-Time Single Image and Video Super-Resolution (2016), section 2.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 2 * _ENLARGED**2, 3, padding=1),
            nn.PixelShuffle(_ENLARGED),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (images * pixels, 2) for images (images, 1, 64, 64)."""
        scores: Tensor = self.features(images)
        return scores.permute(0, 2, 3, 1).reshape(-1, 2)


def _torchvision(name: str, batch: int, scale: int) -> nn.Module:
    from torchvision import models

    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model: nn.Module = getattr(models, name)(num_classes=_CLASSES, **options)
    return model


def _superres(batch: int, scale: int) -> nn.Module:
    return SuperResolution()


def _images(name: str, title: str) -> Workload:
    return Workload(
        name=name,
        title=title,
        row_shape=(3, 224, 224),
        build=partial(_torchvision, name),
        scales=False,
    )


#: Network, and its batch sizes.
SALUS: Mapping[str, tuple[Workload, tuple[int, ...]]] = {
    "alexnet": (_images("alexnet", "AlexNet"), (25, 50, 100)),
    "googlenet": (_images("googlenet", "GoogLeNet"), (25, 50, 100)),
    "inception3": (WORKLOADS["inception_v3"], (25, 50, 100)),
    "inception4": (WORKLOADS["inception_v4"], (25, 50, 75)),
    "resnet50": (WORKLOADS["resnet50"], (25, 50, 75)),
    "resnet101": (WORKLOADS["resnet101"], (25, 50, 75)),
    "resnet152": (WORKLOADS["resnet152"], (25, 50, 75)),
    "vgg11": (_images("vgg11", "VGG-11"), (25, 50, 100)),
    "vgg16": (WORKLOADS["vgg16"], (25, 50, 100)),
    "vgg19": (WORKLOADS["vgg19"], (25, 50, 100)),
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
}
