"""Transformers as the papers trained them, and a decoder as one trains it today.

Tokens come as int64 and every network returns one row of scores over the vocabulary for each token that it
predicts.  Attention is written out as products of matrices and a softmax, as in the papers' frameworks,
but in the decoder, which uses PyTorch's fused kernel.

Source: Vaswani et al. 2017 (Transformer), Devlin et al. 2018 (BERT base), Radford et al. 2019 (GPT-2), with
the sizes given there; Capuchin table 1 and TSPLIT section VI-A name the first two.
"""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

#: Of what attention and each block add, the share dropped out.
_DROPOUT = 0.1


class Attention(nn.Module):
    """Attention of several heads, from one sequence to another or to itself."""

    def __init__(self, width: int, heads: int, *, causal: bool, fused: bool) -> None:
        super().__init__()
        self._heads, self._causal, self._fused = heads, causal, fused
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """x: (batch, length, width) that asks; source: of the same width, that is asked."""
        query, key, value = (
            self._split(self.query(x)),
            self._split(self.key(source)),
            self._split(self.value(source)),
        )
        if self._fused:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self._causal)
        else:
            scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
            if self._causal:
                allowed = torch.ones(x.shape[1], source.shape[1], dtype=torch.bool, device=x.device).tril()
                scores = scores.masked_fill(~allowed, -1e9)
            mixed = self.dropout(scores.softmax(3)) @ value
        joined: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, heads, length, width of a head)."""
        return x.view(*x.shape[:2], self._heads, -1).transpose(1, 2)


class Block(nn.Module):
    """Attention to the sequence itself, to another one where there is one, and a feed-forward part."""

    def __init__(
        self, width: int, heads: int, *, norm_first: bool, causal: bool, crosses: bool, fused: bool
    ) -> None:
        super().__init__()
        self._norm_first = norm_first
        self.attention = Attention(width, heads, causal=causal, fused=fused)
        self.crossing = Attention(width, heads, causal=False, fused=fused) if crosses else None
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if crosses else 2))
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
        """x: (batch, length, width); source: what the crossing attention asks."""
        x = self._add(0, x, lambda y: self.attention(y, y))
        if self.crossing is not None:
            crossing = self.crossing
            x = self._add(1, x, lambda y: crossing(y, source))
        return self._add(len(self.norms) - 1, x, self.feed_forward)

    def _add(
        self, index: int, x: torch.Tensor, layer: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        norm = self.norms[index]
        if self._norm_first:
            added: torch.Tensor = x + self.dropout(layer(norm(x)))
        else:
            added = norm(x + self.dropout(layer(x)))
        return added


class Embedding(nn.Module):
    """Tokens and their positions as vectors."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: int64 (batch, length)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: torch.Tensor = self.dropout(self.tokens(tokens) + self.positions(places))
        return embedded


class Bert(nn.Module):
    """An encoder that predicts masked tokens: here the first ones, since where they are costs nothing."""

    def __init__(
        self, *, width: int, depth: int, heads: int, vocabulary: int, length: int, masked: int
    ) -> None:
        super().__init__()
        self._masked = masked
        self.embedding = Embedding(vocabulary, length, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, norm_first=False, causal=False, crosses=False, fused=False)
            for _ in range(depth)
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: int64 (batch, length); returns (batch * masked, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.head(x[:, : self._masked].flatten(0, 1)), self.embedding.tokens.weight)


class Transformer(nn.Module):
    """Encoder and decoder for translation; a row is the source's tokens, then the target's."""

    def __init__(self, *, width: int, depth: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self._length = length
        self.embedding = Embedding(vocabulary, length, width)
        self.encoder = nn.ModuleList(
            Block(width, heads, norm_first=False, causal=False, crosses=False, fused=False)
            for _ in range(depth)
        )
        self.decoder = nn.ModuleList(
            Block(width, heads, norm_first=False, causal=True, crosses=True, fused=False)
            for _ in range(depth)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: int64 (batch, 2 * length); returns (batch * length, vocabulary)."""
        source = self.embedding(tokens[:, : self._length])
        for block in self.encoder:
            source = block(source)
        target = self.embedding(tokens[:, self._length :])
        for block in self.decoder:
            target = block(target, source)
        return functional.linear(target.flatten(0, 1), self.embedding.tokens.weight)


class Gpt(nn.Module):
    """A decoder that predicts each next token."""

    def __init__(self, *, width: int, depth: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, length, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, norm_first=True, causal=True, crosses=False, fused=True) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: int64 (batch, length); returns (batch * length, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x).flatten(0, 1), self.embedding.tokens.weight)
