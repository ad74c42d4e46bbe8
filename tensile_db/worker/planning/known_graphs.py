"""Graphs that a process was asked about, one object each: what is known of a graph stays known."""

from collections.abc import Sequence

from tensile_db.graph import StepGraph

#: Graphs of questions past that are kept.
KEPT_GRAPHS = 16


class KnownGraphs:
    """Those asked about last."""

    def __init__(self) -> None:
        self._by_digest: dict[str, StepGraph] = {}

    def known(self, graphs: Sequence[StepGraph]) -> tuple[StepGraph, ...]:
        """Return the graphs of one question; those that are known already as the objects that they were."""
        asked: dict[str, StepGraph] = {}
        for graph in graphs:
            asked[graph.digest] = self._by_digest.pop(graph.digest, asked.get(graph.digest, graph))
        self._by_digest |= asked
        # All of this question's: many models may be served at a time.
        for digest in tuple(self._by_digest)[: -max(KEPT_GRAPHS, len(asked))]:
            del self._by_digest[digest]
        return tuple(self._by_digest[graph.digest] for graph in graphs)
