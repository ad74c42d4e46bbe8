"""A variational autoencoder of fully connected layers.

Source: Kingma and Welling, Auto-Encoding Variational Bayes (2014), sections 2.3, 2.4 and appendix C: Gaussian
encoder, Bernoulli decoder, reparametrized noise.
Differs: the loss that is reported is the reconstruction's alone, the mean over pixels.  The gradients are
those of the whole bound: the divergence's, which are known in closed form, are added on the way back.
"""

from typing import Any

import torch
from torch import nn


class Drawn(torch.autograd.Function):
    """A sample of a Gaussian, whose gradients have those of its divergence from the prior in them.

    The divergence of N(mean, variance) from N(0, 1) is (mean^2 + variance - log variance - 1) / 2, summed.
    Source: Kingma and Welling, appendix B.
    """

    @staticmethod
    def forward(
        ctx: Any, mean: torch.Tensor, log_variance: torch.Tensor, noise: torch.Tensor, weight: float
    ) -> torch.Tensor:
        """weight: of the divergence in the loss."""
        deviation = torch.exp(log_variance * 0.5)
        ctx.save_for_backward(mean, deviation, noise)
        ctx.weight = weight
        return mean + deviation * noise

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """Return the gradients of mean and log variance."""
        (gradient,) = gradients
        mean, deviation, noise = ctx.saved_tensors
        of_variance = gradient * noise * deviation + (deviation * deviation - 1.0) * ctx.weight
        return gradient + mean * ctx.weight, of_variance * 0.5, None, None


class Vae(nn.Module):
    """Encoder, sample, decoder.  Without training, the sample is the mean."""

    def __init__(self, *, pixels: int, width: int, latent: int, dropout: float) -> None:
        super().__init__()
        self._latent = latent
        self.encoder = nn.Sequential(
            nn.Linear(pixels, width),
            nn.ELU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(width, 2 * latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, width),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ELU(),
            nn.Dropout(dropout),
            nn.Linear(width, pixels),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images: (batch, pixels); returns (batch * pixels, 2), the scores of dark and light."""
        mean, log_variance = torch.split(self.encoder(images), self._latent, 1)
        sample = mean
        if self.training:
            # The loss is a mean over pixels, so that the bound is as well.
            weight = 1.0 / images.numel()
            sample = Drawn.apply(mean, log_variance, torch.randn_like(mean), weight)
        light = self.decoder(sample).flatten()
        # Of these two, softmax is the sigmoid: cross entropy is Bernoulli's likelihood.
        return torch.stack([torch.zeros_like(light), light], 1)
