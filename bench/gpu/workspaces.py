"""What a step's kernels hold beyond its tensors, charged as a worker charges it, without a catalog.

Each kind of op is measured apart, as a worker does before it plans; it takes as long as an iteration or two.
"""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from tensile_db.capture.packed_step import planned_step
from tensile_db.capture.step import CapturedStep
from tensile_db.scheduler.plan import Rewriting
from tensile_db.worker.devices.device import Device
from tensile_db.worker.workspaces.charging import charged, charged_with_parts, guess_nbytes
from tensile_db.worker.workspaces.meter import WorkspaceMeter
from tensile_db.worker.workspaces.signatures import step_signatures

#: Opens what measures ops.
Open = Callable[..., WorkspaceMeter]


class Workspaces:
    """Those of ops on one device, measured once for each kind."""

    def __init__(
        self,
        device: Device,
        *,
        room_nbytes: int,
        has_time: Callable[[], bool],
        open_meter: Open = WorkspaceMeter,
    ) -> None:
        """room_nbytes: what a job may hold; has_time: asked before each op: else it is guessed."""
        self._device = device
        self._room_nbytes = room_nbytes
        self._has_time = has_time
        self._open_meter = open_meter
        #: Bytes by digest.
        self._known: dict[str, int] = {}
        self._guessed = 0
        self._spent_s = 0.0

    def charge(self, step: CapturedStep) -> CapturedStep:
        """Return the step with its ops' workspaces in its graph."""
        if not self._device.watches_memory:
            return step
        begin_s = time.monotonic()
        signatures = step_signatures(step)
        with closing(self._open_meter(step, self._device, room_nbytes=self._room_nbytes)) as meter:
            for op, signature in zip(step.graph.ops, signatures, strict=True):
                if signature is None or signature.digest in self._known:
                    continue
                nbytes = meter.workspace_nbytes(op.id) if self._has_time() else None
                if nbytes is None:
                    self._guessed += 1
                    nbytes = guess_nbytes(step, op.id, self._room_nbytes)
                self._known[signature.digest] = nbytes
        self._spent_s += time.monotonic() - begin_s
        return charged(step, signatures, self._known)

    def charge_parts(self, step: CapturedStep, rewriting: Rewriting) -> CapturedStep:
        """Return the step with what parts of its ops need charged to the ops, where that is more."""
        if not self._device.watches_memory or not rewriting.splits:
            return step
        in_parts = planned_step(step, rewriting, self._device.torch_device)
        return charged_with_parts(step, rewriting, self.charge(in_parts).graph.ops)

    def facts(self) -> dict[str, Any]:
        """Return how many kinds of ops were measured, how many guessed, how long it took, and the largest."""
        return {
            "measured": len(self._known) - self._guessed,
            "guessed": self._guessed,
            "seconds": round(self._spent_s, 2),
            "largest_nbytes": max(self._known.values(), default=0),
        }
