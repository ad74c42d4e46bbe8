"""An encoder and a decoder of LSTMs for translation, unrolled step by step.

PyTorch's own LSTM is one op on a processor and another on a GPU, of which nothing but the name is known; as
matrix products, sigmoids and products of elements, its cost and its memory are.

Source: Sutskever et al., Sequence to Sequence Learning with Neural Networks (2014), section 2; dropout
between layers as in Zaremba et al., Recurrent Neural Network Regularization (2014).
"""

import torch
from torch import nn

#: Of one layer: what it gives out, and its cells, each (batch, width).
State = tuple[torch.Tensor, torch.Tensor]


class Lstm(nn.Module):
    """One layer.  Its gates lie input, forget, output, candidate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self.input = nn.Linear(width, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width, bias=False)

    def forward(self, sequence: torch.Tensor, state: State | None) -> tuple[torch.Tensor, State]:
        """sequence: (length, batch, width); state: before it, None for zeros.  Returns the same, after it."""
        weight = self.recurrent.weight.t()
        outputs = []
        for given in self.input(sequence).unbind(0):
            gates = given if state is None else torch.addmm(given, state[0], weight)
            state = self._step(gates, None if state is None else state[1])
            outputs.append(state[0])
        assert state is not None, "a sequence has at least one step"
        return torch.stack(outputs), state

    def _step(self, gates: torch.Tensor, cells: torch.Tensor | None) -> State:
        three, candidate = torch.split(gates, [3 * self._width, self._width], 1)
        into, kept, out = torch.split(three.sigmoid(), self._width, 1)
        added = into * candidate.tanh()
        cells = added if cells is None else kept * cells + added
        return out * cells.tanh(), cells


class Layers(nn.Module):
    """Tokens' vectors and layers above each other."""

    def __init__(self, *, vocabulary: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Lstm(width) for _ in range(depth))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: torch.Tensor, states: list[State] | None = None
    ) -> tuple[torch.Tensor, list[State]]:
        """tokens: int64 (batch, length); returns (length, batch, width), and each layer's state after it."""
        x = self.dropout(self.tokens(tokens.t()))
        after = []
        for number, layer in enumerate(self.layers):
            x, state = layer(x, None if states is None else states[number])
            x = self.dropout(x)
            after.append(state)
        return x, after


class Seq2Seq(nn.Module):
    """A row is the source's tokens, then the target's, each as many."""

    def __init__(self, *, vocabulary: int, width: int, depth: int, length: int, dropout: float) -> None:
        super().__init__()
        self._length = length
        self.encoder, self.decoder = (
            Layers(vocabulary=vocabulary, width=width, depth=depth, dropout=dropout) for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: int64 (batch, 2 * length); returns (batch * length, vocabulary)."""
        source, target = torch.split(tokens, self._length, 1)
        # The paper's trick: the source's last word comes first.
        _, states = self.encoder(source.flip(1))
        x, _ = self.decoder(target, states)
        scores: torch.Tensor = self.head(x.transpose(0, 1).flatten(0, 1))
        return scores
