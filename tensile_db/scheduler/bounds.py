"""Lower bounds that no plan of the same ops can undercut.

Source: ours.  The largest op's own tensors bound the peak, the ops' own time the period.
"""

from collections.abc import Sequence

from tensile_db.graph import StepGraph
from tensile_db.scheduler.analysis.once import once_for_each


@once_for_each
def lower_bound_peak_nbytes(graph: StepGraph) -> int:
    """Return the most bytes that a single op needs at once: all it reads and writes, and its workspace.

    Persistent tensors that no op touches have no gap to leave in, and stay.
    """
    touched = {tensor for op in graph.ops for tensor in (*op.reads, *op.writes)}
    idle_nbytes = sum(t.nbytes for t in graph.tensors if t.persistent and t.id not in touched)
    return idle_nbytes + max(
        sum(graph.tensors[tensor].nbytes for tensor in {*op.reads, *op.writes}) + op.workspace_nbytes
        for op in graph.ops
    )


def time_of_ops_ns(latencies_ns: Sequence[int]) -> int:
    """Return the time of the ops alone, with nothing run twice and nothing awaited.

    No plan is faster, whatever its budget; `bound/time_bound.py` has the bound for a given budget.
    """
    return sum(latencies_ns)
