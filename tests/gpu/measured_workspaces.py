"""What kernels of a captured step need beyond their tensors, as a worker measures it before it plans."""

from contextlib import closing

from tensile_db.worker.workspaces.meter import WorkspaceMeter
from tests.gpu.conftest import GIB


def measured_apart(step, device):
    """Return the workspace of each op measured apart, by op id."""
    with closing(WorkspaceMeter(step, device, room_nbytes=2 * GIB)) as meter:
        return [
            0 if call.function is None else meter.workspace_nbytes(op.id)
            for op, call in zip(step.graph.ops, step.calls, strict=True)
        ]
