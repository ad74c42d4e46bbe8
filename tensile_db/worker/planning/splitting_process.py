"""Looks for the splits of jobs, as a process of its own (`child.py`)."""

from dataclasses import dataclass, replace

from tensile_db.graph import StepGraph
from tensile_db.scheduler.policies.in_parts import find_splits
from tensile_db.scheduler.request import SplitsWithin
from tensile_db.worker.planning.child import answer_questions
from tensile_db.worker.planning.known_graphs import KnownGraphs
from tensile_db.worker.planning.planning_process import Broken


@dataclass(frozen=True, kw_only=True)
class SplitSearch:
    """Asks for the splits of a job that never has more memory than the limit; as `find_splits`."""

    graph: StepGraph
    limit_nbytes: int
    keeps_bits: bool


def answer(search: SplitSearch) -> SplitsWithin | Broken:
    """Look; every failure is an answer."""
    try:
        return find_splits(search.graph, search.limit_nbytes, keeps_bits=search.keeps_bits)
    except Exception as error:  # noqa: BLE001  # whatever it is, only the job asked for is concerned
        return Broken(message=f"{type(error).__name__}: {error}")


def main() -> None:
    """Answer questions until there are no more."""
    graphs = KnownGraphs()

    def answer_known(search: SplitSearch) -> SplitsWithin | Broken:
        (graph,) = graphs.known([search.graph])
        return answer(replace(search, graph=graph))

    answer_questions(answer_known)
