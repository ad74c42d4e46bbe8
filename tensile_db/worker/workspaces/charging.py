"""Workspaces put into a step's graph, where plans, their proof and the executor find them."""

from collections.abc import Sequence
from dataclasses import replace

from tensile_db.capture.step import CapturedStep


def with_workspaces(step: CapturedStep, workspaces_nbytes: Sequence[int]) -> CapturedStep:
    """Return the step with these workspaces, bytes by op id; the same one where it has them already."""
    ops = tuple(
        replace(op, workspace_nbytes=nbytes)
        for op, nbytes in zip(step.graph.ops, workspaces_nbytes, strict=True)
    )
    if ops == step.graph.ops:
        return step
    return replace(step, graph=replace(step.graph, ops=ops))
