"""Workspaces of a step's ops: looked up in the catalog, measured where it has none, charged in the graph.

They are known before a step is planned, so that a job has one plan, made with all that it needs, and the same
one whether its ops were measured for it or for another job.  Ops are measured apart (meter.py), in quiet: the
allocator tells what the whole process holds, so a reading is an op's own only while nobody else allocates or
frees.  The quiet is the turnstile's, for whoever computes, moves a state or departs asks there already, and
memory that no job holds meanwhile is free for the ops' tensors.  It lasts a moment at a time.

What cannot be measured is charged by a guess, kept nowhere and measured again for the next job.

Source: ours.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from tensile_db.capture.packed_step import planned_step
from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import workspaces
from tensile_db.catalog.workspaces import WorkspaceRow
from tensile_db.graph import OpId
from tensile_db.scheduler.plan import Rewriting
from tensile_db.worker.devices.device import Device
from tensile_db.worker.turnstile import Turnstile
from tensile_db.worker.workspaces.charging import charged, charged_with_parts, guess_nbytes
from tensile_db.worker.workspaces.meter import WorkspaceMeter
from tensile_db.worker.workspaces.signatures import Signature, step_signatures

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Quiet lasts as long as it was waited for, but at least and at most so long, or one op: others lose no more
#: time to it than they had before, and whoever serves does not wait for long.
_QUIET_S, _LONGEST_QUIET_S = 0.25, 1.0


class Transact(Protocol):
    """Carries out transactions."""

    def __call__(self, work: Callable[[Connection], T]) -> T:
        """Carry `work` out in one, and return its result."""
        ...


@dataclass(frozen=True, kw_only=True)
class Workspaces:
    """What a worker's jobs know of their ops' workspaces.  Safe for all threads."""

    device: Device
    turnstile: Turnstile
    #: Under which they are kept (latencies/hardware.py, `name_for_workspaces`).
    hardware: str
    #: What this worker has measured, bytes by digest: jobs that begin together look for the same at once.
    _seen: dict[str, int] = field(default_factory=dict, init=False)

    def lookup(self, step: CapturedStep, transact: Transact) -> CapturedStep:
        """Return the step with the workspaces that are known charged, and nothing for the others."""
        if not self.device.watches_memory:
            return step
        signatures = step_signatures(step)
        return charged(step, signatures, self._read(signatures, transact))

    def measure(
        self, step: CapturedStep, transact: Transact, check: Callable[[], None], *, limit_nbytes: int
    ) -> CapturedStep:
        """Return the step with its ops' workspaces charged, all of them; not within a turn.

        check: asked between ops, may raise to stop.
        limit_nbytes: what an op's tensors may take while it is measured.
        Raises DeviceLost, what `check` raises, and the database's errors.
        """
        if not self.device.watches_memory:
            return step
        signatures = step_signatures(step)
        known = self._read(signatures, transact)
        unknown: dict[str, OpId] = {}
        for op, signature in zip(step.graph.ops, signatures, strict=True):
            if signature is not None and signature.digest not in known:
                unknown.setdefault(signature.digest, op.id)
        if unknown:
            log.info("the workspaces of %s kinds of ops are measured", len(unknown))
        for found in self._measured(step, unknown, check, limit_nbytes):
            rows = [_row(signatures[unknown[digest]], nbytes) for digest, nbytes in found.items()]
            # What is measured stays so, whatever becomes of the job, or of the worker.
            transact(partial(workspaces.write, hardware=self.hardware, rows=rows))
            known |= found
        for digest in unknown.keys() - known.keys():
            known[digest] = guess_nbytes(step, unknown[digest], limit_nbytes)
        return charged(step, signatures, known)

    def measure_parts(
        self,
        step: CapturedStep,
        rewriting: Rewriting,
        transact: Transact,
        check: Callable[[], None],
        *,
        limit_nbytes: int,
    ) -> CapturedStep:
        """Return the step with what parts of its ops need charged to the ops, where that is more.

        A planner takes it that no part needs more than the whole op.  The rest is as of `measure`.
        """
        if not self.device.watches_memory or not rewriting.splits:
            return step
        in_parts = planned_step(step, rewriting, self.device.torch_device)
        measured = self.measure(in_parts, transact, check, limit_nbytes=limit_nbytes).graph.ops
        return charged_with_parts(step, rewriting, measured)

    def _read(self, signatures: Sequence[Signature | None], transact: Transact) -> dict[str, int]:
        digests = {signature.digest for signature in signatures if signature is not None}
        return transact(lambda conn: workspaces.read(conn, self.hardware, digests))

    def _measured(
        self, step: CapturedStep, ops: Mapping[str, OpId], check: Callable[[], None], limit_nbytes: int
    ) -> Iterator[dict[str, int]]:
        """Yield workspaces in bytes by digest, as many at a time as are measured in a moment's quiet."""
        left = list(ops.items())
        while left:
            check()
            found = {digest: self._seen[digest] for digest, _ in left if digest in self._seen}
            left = [(digest, op) for digest, op in left if digest not in found]
            if not left:
                yield found
                return
            asked_s = time.monotonic()
            with self.turnstile.quiet(check) as free_nbytes:
                room_nbytes = max(0, min(free_nbytes, limit_nbytes))
                with closing(WorkspaceMeter(step, self.device, room_nbytes=room_nbytes)) as meter:
                    begin_s = time.monotonic()
                    until_s = begin_s + min(max(_QUIET_S, begin_s - asked_s), _LONGEST_QUIET_S)
                    while left:
                        digest, op = left.pop()
                        nbytes = self._seen.get(digest)
                        if nbytes is None:
                            nbytes = meter.workspace_nbytes(op)
                        if nbytes is not None:
                            found[digest] = self._seen[digest] = nbytes
                        if time.monotonic() >= until_s:
                            break
            yield found


def _row(signature: Signature | None, nbytes: int) -> WorkspaceRow:
    assert signature is not None, "an op that is measured has a signature"
    return WorkspaceRow(
        digest=signature.digest, kind=signature.kind, signature=signature.content, workspace_nbytes=nbytes
    )
