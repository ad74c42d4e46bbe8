"""Deep Speech: five hidden layers over frames of sound, the fourth of them recurrent both ways.

Source: Hannun et al., Deep Speech (2014), sections 2 and 2.1, 3.3 for every second frame.
Differs: every frame has a label of its own, where the paper leaves the alignment to CTC.
"""

import torch
from torch import nn
from torch.nn import functional

#: Where the paper's rectified units are clipped.
_CLIPPED_AT = 20.0


class Recurrence(nn.Module):
    """Clipped rectified units that see the frame and themselves at the frame before, step by step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, width)
        self.recurrent = nn.Linear(width, width, bias=False)

    def forward(self, frames: torch.Tensor, *, backwards: bool) -> torch.Tensor:
        """frames: (batch, frames, width); returns the same."""
        inputs = self.input(frames).unbind(1)
        weight = self.recurrent.weight.t()
        outputs: list[torch.Tensor] = []
        for given in inputs[::-1] if backwards else inputs:
            wanted = torch.addmm(given, outputs[-1], weight) if outputs else given
            outputs.append(functional.hardtanh(wanted, 0.0, _CLIPPED_AT))
        return torch.stack(outputs[::-1] if backwards else outputs, 1)


class DeepSpeech(nn.Module):
    """Scores of every frame's phoneme."""

    def __init__(self, *, coefficients: int, width: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.before = nn.ModuleList(nn.Linear(inputs, width) for inputs in (coefficients, width, width))
        self.forwards, self.backwards = Recurrence(width), Recurrence(width)
        self.after = nn.Linear(width, width)
        self.head = nn.Linear(width, labels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        """sounds: (batch, frames, coefficients); returns (batch * frames, labels)."""
        x = sounds
        for layer in self.before:
            x = self._hidden(layer, x)
        x = self.forwards(x, backwards=False) + self.backwards(x, backwards=True)
        x = self._hidden(self.after, x)
        scores: torch.Tensor = self.head(x.flatten(0, 1))
        return scores

    def _hidden(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.dropout(functional.hardtanh(layer(x), 0.0, _CLIPPED_AT))
        return hidden
