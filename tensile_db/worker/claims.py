"""What a worker takes from the queue and puts back into it, for its controller.

Where several workers are alive it takes the jobs that belong to it (`scheduler/placing.py`), and those that
another one leaves for too long, so that no job waits for a worker that is slow, suspended or dead.  A
database that is away costs a look, never the worker: there are no jobs then, until the next one.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import jobs, leases, placements, workers
from tensile_db.catalog.jobs import JobRow
from tensile_db.catalog.placements import LiveWorker
from tensile_db.errors import KernelFailed, LostLease
from tensile_db.scheduler.placing import Need, Offer, Placement, only_these_would_do, place
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.patience import Patience, Since
from tensile_db.worker.refusals import refuse_waiting

log = logging.getLogger(__name__)


class Claims:
    """One worker's claims; used by its controller's thread only."""

    def __init__(self, *, engine: Engine, worker: int, device: DeviceSpec, lease_s: float) -> None:
        self._engine = engine
        self._worker = worker
        self._device = device
        self._lease_s = lease_s
        self._patience = Patience()
        #: Jobs that no device is large enough for; the worker of one may be about to start again.
        self._stuck: Since[int] = Since()
        #: Jobs that wait for a worker.
        self._waiting: Since[int] = Since()
        #: Jobs that were this worker's and could not be claimed: their owners have locked their rows.  They
        #: take nobody's place while that lasts.
        self._locked: frozenset[int] = frozenset()

    def take(self, *, limit: int, held: Collection[int], only_serving: bool = False) -> list[JobRow]:
        """Claim up to `limit` jobs and return them; held: jobs that are here already.

        only_serving: leave all jobs alone that do not serve a model.
        Jobs that lost many workers, or for which no device is large enough, are failed on the way.
        """
        try:
            scene = self._look()
            own = self._own(scene)
            with self._engine.begin() as conn:
                if scene.too_large:
                    self._fail(conn, scene.too_large)
                sound, poisonous = leases.claim(
                    conn,
                    worker=self._worker,
                    device=self._device.name,
                    limit=limit,
                    lease_s=self._lease_s,
                    held=held,
                    only_serving=only_serving,
                    among=None if own is None else [*own, *self._locked],
                    memory_nbytes=self._device.memory_nbytes,
                )
                for row in poisonous:
                    error = _lost_too_often(row)
                    jobs.fail(
                        conn, row.fence, sqlstate=error.sqlstate, message=error.message, hint=error.hint
                    )
                tried = {*(own or ()), *self._locked}.difference(
                    held, (row.id for row in (*sound, *poisonous))
                )
                if len(sound) + len(poisonous) < limit and not only_serving:
                    self._locked = placements.still_claimable(conn, tried, lease_s=self._lease_s)
        except DBAPIError as error:
            log.warning("no jobs could be claimed: %s", error.orig)
            return []
        for row in sound:
            log.info("job %s of %s is claimed, attempt %s", row.id, row.owner, row.attempt)
        return sound

    def give_back(self, row: JobRow) -> None:
        """Put a job back that was claimed and not begun."""
        try:
            with self._engine.begin() as conn:
                jobs.give_back(conn, row.fence)
        except (DBAPIError, LostLease) as error:
            # Its lease runs out, then.
            log.warning("job %s could not be given back: %s", row.id, error)

    def stop(self) -> None:
        """Let the others know that this worker takes no more jobs."""
        try:
            with self._engine.begin() as conn:
                workers.set_state(conn, self._worker, "stopping")
        except DBAPIError as error:
            log.warning("worker %s is stopping and cannot say so: %s", self._worker, error.orig)

    def find_better_off(self, waiting: Sequence[JobRow]) -> list[int]:
        """Return which of the jobs that wait in line here would run elsewhere at once.

        Their rows say where: whoever gives them back gives them to that worker.
        """
        if not waiting:
            return []
        own = {row.id: row for row in waiting}
        try:
            moves = [p for p in self._placed(self._look()) if p.moves and p.job in own]
            if not moves:
                return []
            with self._engine.begin() as conn:
                moves = [
                    move
                    for move in moves
                    if placements.mean_for(conn, own[move.job].fence, worker=move.worker)
                ]
        except DBAPIError as error:
            log.warning("whether jobs in line would run elsewhere could not be looked for: %s", error.orig)
            return []
        for move in moves:
            log.info("job %s waits here, and goes to worker %s", move.job, move.worker)
        return [move.job for move in moves]

    def _look(self) -> "_Scene":
        """Look at workers and waiting jobs, all at one moment.

        Else a job that another worker takes in between is neither among the jobs nor held by anyone, and
        its place is given away once more.
        """
        with self._engine.connect().execution_options(isolation_level="REPEATABLE READ") as conn:
            live = placements.live_workers(conn)
            offers = [worker.offer for worker in live]
            # Who is taken for lost by the others must not wait for them.
            if not any(offer.worker == self._worker for offer in offers):
                return _Scene()
            needs = (
                placements.waiting(conn, offers, lease_s=self._lease_s, without=self._locked)
                if len(live) > 1
                else ()
            )
            too_large = placements.too_large(conn, offers)
        now_s = time.monotonic()
        stuck = self._stuck.look(too_large, now_s=now_s, for_s=self._lease_s)
        unheld = [need.job for need in needs if need.line_of is None]
        return _Scene(
            live=tuple(live),
            needs=tuple(needs),
            too_large={job: too_large[job] for job in sorted(stuck)},
            overdue=frozenset(self._waiting.look(unheld, now_s=now_s, for_s=self._lease_s)),
        )

    def _own(self, scene: "_Scene") -> list[int] | None:
        """Return the jobs that belong here; None: whichever there are."""
        if len(scene.live) < 2:
            return None
        return [p.job for p in self._placed(scene) if p.worker == self._worker and p.line_of is None]

    def _placed(self, scene: "_Scene") -> Sequence[Placement]:
        beats = {worker.offer.worker: worker.heartbeat_at for worker in scene.live}
        while True:
            slow = self._patience.passed_over(beats)
            heard_of = [worker.offer for worker in scene.live if worker.offer.worker not in slow]
            passed_over = [worker.offer for worker in scene.live if worker.offer.worker in slow]
            needs = [
                need for need in scene.needs if not _waits_for(need, passed_over, heard_of, scene.overdue)
            ]
            placed = place(needs, heard_of)
            left = [(p.job, p.worker) for p in placed if p.line_of is None and p.worker != self._worker]
            if not self._patience.see(left, beats, now_s=time.monotonic()):
                return placed
            log.warning("workers %s leave jobs that are theirs", sorted(self._patience.passed_over(beats)))

    def _fail(self, conn: Connection, too_large: Mapping[int, int]) -> None:
        """Fail jobs for which no device was large enough in the time of a lease."""
        rows, _ = leases.claim(
            conn,
            worker=self._worker,
            device=self._device.name,
            limit=len(too_large),
            lease_s=self._lease_s,
            among=tuple(too_large),
        )
        for row in rows:
            log.info("job %s fails: no worker has a device that is large enough", row.id)
            refuse_waiting(conn, row.fence, needed_nbytes=too_large[row.id])


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """Workers that are alive and jobs that wait at one moment; nobody: this worker is taken for lost."""

    live: tuple[LiveWorker, ...] = ()
    needs: tuple[Need, ...] = ()
    #: Jobs for which no device has been large enough for long, with the least that would do.
    too_large: Mapping[int, int] = field(default_factory=dict)
    #: Jobs that nobody has taken for so long.
    overdue: frozenset[int] = frozenset()


def _waits_for(need: Need, slow: Sequence[Offer], others: Sequence[Offer], overdue: Collection[int]) -> bool:
    """Whether a job waits for a worker that is slow, since the others would only refuse it.

    Not for one whose places are taken, and not for longer than a lease: that they would is only likely.
    """
    if need.line_of is not None or need.meant_for is not None or need.job in overdue:
        return False
    return only_these_would_do(need, [offer for offer in slow if offer.held < offer.places], others)


def _lost_too_often(row: JobRow) -> KernelFailed:
    return KernelFailed(
        f"{leases.MAX_LOSSES} workers in a row were lost while they ran the job",
        hint="See the worker's log; the machine may lack memory for the job's rows or its tensors.",
    )
