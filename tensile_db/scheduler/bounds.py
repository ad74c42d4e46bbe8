"""Lower bounds that no plan of the same ops can undercut.

Source: ours.  The largest op's own tensors bound the peak, the ops' own time the period.
"""

from collections.abc import Sequence

from tensile_db.graph import Op, StepGraph, Tensor
from tensile_db.scheduler.analysis.once import once_for_each


@once_for_each
def lower_bound_peak_nbytes(graph: StepGraph) -> int:
    """Return the most bytes that a single op needs at once: all it reads and writes, and its workspace.

    Persistent tensors that no op touches have no gap to leave in, and stay.
    """
    return untouched_nbytes(graph) + max(needed_nbytes(op, graph.tensors) for op in graph.ops)


def untouched_nbytes(graph: StepGraph) -> int:
    """Return what persistent tensors hold that no op touches; splits do not change it."""
    touched = {tensor for op in graph.ops for tensor in (*op.reads, *op.writes)}
    return sum(t.nbytes for t in graph.tensors if t.persistent and t.id not in touched)


def needed_nbytes(op: Op, tensors: Sequence[Tensor]) -> int:
    """Return the bytes that an op needs at once; tensors: by id."""
    return sum(tensors[tensor].nbytes for tensor in {*op.reads, *op.writes}) + op.workspace_nbytes


def time_of_ops_ns(latencies_ns: Sequence[int]) -> int:
    """Return the time of the ops alone, with nothing run twice and nothing awaited.

    No plan is faster, whatever its budget; `bound/time_bound.py` has the bound for a given budget.
    """
    return sum(latencies_ns)
