"""ESPCN, which enlarges an image.

Source: Shi et al., Real-Time Single Image and Video Super-Resolution (2016), section 2.
Differs: each pixel is one of two classes.
"""

from torch import Tensor, nn


class SuperResolution(nn.Module):
    """Three convolutions of the small image, then one whose channels become pixels."""

    def __init__(self, *, enlarged: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 2 * enlarged**2, 3, padding=1),
            nn.PixelShuffle(enlarged),
        )

    def forward(self, images: Tensor) -> Tensor:
        """images: (batch, 1, height, width); returns (batch * pixels of the large image, 2)."""
        scores: Tensor = self.features(images)
        return scores.permute(0, 2, 3, 1).reshape(-1, 2)
