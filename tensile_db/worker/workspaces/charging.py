"""Workspaces put into a step's graph, where plans, their proof and the executor find them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensile_db.capture.step import CapturedStep
from tensile_db.graph import Op, OpId
from tensile_db.scheduler.plan import Rewriting
from tensile_db.scheduler.rewriting import captured_ops
from tensile_db.worker.workspaces.signatures import Signature


def with_workspaces(step: CapturedStep, workspaces_nbytes: Sequence[int]) -> CapturedStep:
    """Return the step with these workspaces, bytes by op id; the same one where it has them already."""
    ops = tuple(
        replace(op, workspace_nbytes=nbytes)
        for op, nbytes in zip(step.graph.ops, workspaces_nbytes, strict=True)
    )
    if ops == step.graph.ops:
        return step
    return replace(step, graph=replace(step.graph, ops=ops))


def charged(
    step: CapturedStep, signatures: Sequence[Signature | None], known: Mapping[str, int]
) -> CapturedStep:
    """Return the step with these workspaces, bytes by digest, in its graph; signatures: by op id."""
    return with_workspaces(
        step, [0 if signature is None else known.get(signature.digest, 0) for signature in signatures]
    )


def charged_with_parts(step: CapturedStep, rewriting: Rewriting, in_parts: Sequence[Op]) -> CapturedStep:
    """Return the step with what parts of its ops need charged to the ops, where that is more.

    in_parts: ops of the step as rewritten, with their workspaces.
    """
    most = [op.workspace_nbytes for op in step.graph.ops]
    for made_from, op in zip(captured_ops(step.graph, rewriting), in_parts, strict=True):
        if made_from is not None:
            most[made_from] = max(most[made_from], op.workspace_nbytes)
    return with_workspaces(step, most)


def guess_nbytes(step: CapturedStep, op_id: OpId, limit_nbytes: int) -> int:
    """Return what is charged for an op that could not be measured: as much again as its tensors.

    Where there is not that much, what there is: a guess must not be what refuses a job.  For an op whose
    tensors alone exceed the limit that is nothing: it can run in parts only.
    """
    graph = step.graph
    op = graph.ops[op_id]
    nbytes = sum(graph.tensors[tensor].nbytes for tensor in {*op.reads, *op.writes})
    return max(0, min(nbytes, limit_nbytes - nbytes))
