"""A graph convolutional network over a sparse graph, as message passing libraries compute it.

Source: Kipf and Welling 2017; TENSILE's introduction names GCNs among what its method is for.
"""

from itertools import pairwise

import torch
from torch import nn


class GraphConvolution(nn.Module):
    """Each node's sum over its neighbours, weighted by degrees, then a linear layer."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x: (nodes, width); edges: int64 (2, edges), from and to; weights: (edges, 1)."""
        x = self.linear(x)
        messages = x.index_select(0, edges[0]) * weights
        return torch.zeros_like(x, dtype=messages.dtype).index_add(0, edges[1], messages)


class Gcn(nn.Module):
    """Classifies every node; the graph is the network's own, in buffers."""

    def __init__(
        self, *, nodes: int, edges_per_node: int, features: int, width: int, depth: int, classes: int
    ) -> None:
        super().__init__()
        widths = [features, *[width] * (depth - 1), classes]
        self.layers = nn.ModuleList(GraphConvolution(before, after) for before, after in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth - 1))
        self.dropout = nn.Dropout(0.5)
        self.edges: torch.Tensor
        self.weights: torch.Tensor
        count = nodes * edges_per_node
        self.register_buffer("edges", torch.randint(nodes, (2, count)))
        self.register_buffer("weights", torch.full((count, 1), 1.0 / edges_per_node))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (nodes, features); returns (nodes, classes)."""
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = self.dropout(norm(layer(x, self.edges, self.weights)).relu())
        scores: torch.Tensor = self.layers[-1](x, self.edges, self.weights)
        return scores
