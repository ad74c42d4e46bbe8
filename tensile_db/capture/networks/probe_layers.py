"""What probes are made of beside PyTorch's own layers, each with the operators that known networks call."""

import torch
from torch import nn
from torch.nn import functional


class Scale(nn.Module):
    """Multiplies by a learned number a channel, so that what follows has a gradient to hand back."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """shape: of the factors, to be broadcast."""
        super().__init__()
        self.factor = nn.Parameter(torch.ones(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x times the factors."""
        return x * self.factor


class ChannelNorm(nn.Module):
    """Layer normalization of each pixel over its channels, as ConvNeXt has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, (rows, channels, height, width), normalized."""
        normalized: torch.Tensor = self.norm(x.permute(0, 2, 3, 1))
        return normalized.permute(0, 3, 1, 2)


class Joined(nn.Module):
    """Branches over one input, added to it as in ResNet or concatenated with it as in DenseNet."""

    def __init__(self, channels: int, widths: tuple[int, ...], *, residual: bool) -> None:
        """widths: channels of each branch; of a residual, one as wide as the input."""
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))
            for width in widths
        )
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum, activated, or the concatenation."""
        if self.residual:
            return functional.relu(self.branches[0](x) + x, inplace=True)
        return torch.cat([x, *(branch(x) for branch in self.branches)], dim=1)


class Gated(nn.Module):
    """Squeeze and excitation: each channel times a gate made from all channels' means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, (rows, channels, height, width), gated."""
        mean = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.expand(functional.relu(self.reduce(mean), inplace=True)))


class Transformer(nn.Module):
    """Patches of an image, a class token, blocks of attention and wide layers, a head: a small ViT."""

    def __init__(
        self, *, width: int, heads: int, ratio: int, patch: int, tokens: int, depth: int, classes: int
    ) -> None:
        """tokens: patches of an image, and one; ratio: of the wide layers' width to `width`."""
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.zeros(1, tokens, width))
        self.blocks = nn.Sequential(*(_Block(width, heads, ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a row of outputs for each image."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.place
        outputs: torch.Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return outputs


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape
        qkv = self.qkv(self.before_attention(x)).reshape(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))
        widened: torch.Tensor = self.narrow(functional.gelu(self.wide(self.before_wide(x))))
        return x + widened
