"""Traces kept for the next job with an equal network.

Tracing takes the interpreter seconds, in which jobs that run op by op wait for it.  Jobs that start together,
trials of a search and evaluations behind a training mostly have a network that was traced before.  Networks
that were built with the same have the same trace, whatever their weights, unless it has values in it.

Source: ours.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from tensile_db.capture.networks.kept_tensors import constants
from tensile_db.capture.trace import TracedStep

#: Of all traces that are kept together, some 5 kB each; DenseNet-121's training has 4,252.
MOST_NODES = 20_000

Traced = TypeVar("Traced", bound=TracedStep)


class Traces:
    """Those that were asked for last.  For one thread at a time."""

    def __init__(self, most_nodes: int = MOST_NODES) -> None:
        self._most_nodes = most_nodes
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._built_with: WeakKeyDictionary[nn.Module, Hashable] = WeakKeyDictionary()

    def note_built(self, model: nn.Module, built_with: Hashable) -> None:
        """Say what a network was built with: all that its trace depends on, but what `of` looks at."""
        self._built_with[model] = built_with

    def keep_no_more(self) -> None:
        """Let go of all, and keep none from now on."""
        self._most_nodes = 0
        self._kept.clear()

    def of(self, model: nn.Module, step: Hashable, trace: Callable[[], Traced]) -> Traced:
        """Return what `trace` returns, or has returned of an equal network.

        step: what else the trace depends on, the kind of step and its batch.
        Networks are equal that were built with the same and are frozen alike; one that was not noted equals
        none.
        """
        built_with = self._built_with.get(model)
        if built_with is None:
            return trace()
        frozen = tuple(not parameter.requires_grad for parameter in model.parameters())
        # ATen chooses kernels, and so layouts, by the number of threads (capture/kernel_threads.py).
        key = (built_with, frozen, step, torch.get_num_threads())
        found: Traced | None = self._kept.pop(key, None)
        traced = trace() if found is None else found
        if _num_nodes(traced) <= self._most_nodes and not _holds_values(traced):
            self._kept[key] = traced
        while sum(map(_num_nodes, self._kept.values())) > self._most_nodes:
            self._kept.popitem(last=False)
        return traced


def _holds_values(traced: TracedStep) -> bool:
    return next(constants(traced.trace.module), None) is not None


def _num_nodes(traced: TracedStep) -> int:
    return len(traced.trace.module.graph.nodes)
