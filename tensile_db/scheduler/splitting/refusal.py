"""What to say where not even splitting brings a job within its budget.

Source: ours.
"""

from collections.abc import Sequence

from tensile_db.errors import format_nbytes
from tensile_db.graph import Role, StepGraph
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.shares import limit_of

_HINT = (
    "Ops that need the whole batch or all channels cannot be split: use a smaller batch_size, or more memory."
)


def split_hint(graph: StepGraph, budget_nbytes: int, *, keeps_bits: bool = False) -> str:
    """Return what helps a job whose ops need more than the budget, split as they may be.

    keeps_bits: its policy has only splits that change no result.
    """
    fixed_nbytes = _nbytes_of_any_batch(graph)
    if fixed_nbytes <= budget_nbytes:
        return f"{_HINT}  Policy 'auto' may split more." if keeps_bits else _HINT
    return (
        "Only more memory helps: weights that an op needs at once, with their gradients, take"
        f" {format_nbytes(fixed_nbytes)} whatever the batch_size is."
    )


def split_hint_of_all(jobs: Sequence[JobRequest], memory_nbytes: int) -> str:
    """Return what helps jobs that share so much memory: the one that lacks most, its own limit heeded."""
    limits = [(job.graph, limit_of(job, memory_nbytes)) for job in jobs]
    graph, limit_nbytes = max(limits, key=lambda job: _nbytes_of_any_batch(job[0]) - job[1])
    return split_hint(graph, limit_nbytes)


@once_for_each
def _nbytes_of_any_batch(graph: StepGraph) -> int:
    """Return the most bytes that an op needs at once of tensors as large for any batch."""
    fixed = {t.id: t.nbytes for t in graph.tensors if t.persistent or t.role is Role.GRADIENT}
    return max(sum(fixed.get(tensor, 0) for tensor in {*op.reads, *op.writes}) for op in graph.ops)
