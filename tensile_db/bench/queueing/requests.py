"""Models that are served on one simulated device, row by row, with a training job beside them or not.

Decisions are the worker's own: shares by `scheduler/sharing/shared_plans.py`, turns by
`scheduler/sharing/turns.py`, plans made anew when other models are used than before, all rows of a model that
wait together in one turn.  A turn takes the period of the plan for so many rows, and where the model's state
is not kept on the device, its copy to it.  Turns that overlap slow each other down as in `simulation.py`.
Time is in ns.

Source: ours.
Differs: plans are made at once and cost no time; what a row's way through the database takes is left out,
`python -m bench.serving` has that.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensile_db.bench.points import Subject
from tensile_db.bench.queueing.simulation import PlanShared
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.serving import LATELY_NS
from tensile_db.scheduler.sharing.share import Share
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.scheduler.sharing.turns import Turns

#: As the worker's.
_USE_PAUSE_NS = 5 * 10**9
#: Of a model that nobody has asked for yet.
_NEVER_NS = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model, by how many rows go forward together."""

    sizes: Mapping[int, Subject]

    @property
    def largest(self) -> int:
        """The most rows that go forward together."""
        return max(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A row that somebody waits for."""

    at_ns: int
    #: Its place among the models.
    model: int


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    #: By row, in the order of the answers: (model, from its coming to its answer).
    latencies_ns: list[tuple[int, int]] = field(default_factory=list)
    #: Turns, and those of them for which the model's state was copied to the device.
    turns: int = 0
    moved: int = 0
    plannings: int = 0
    #: Of the training job, and until when they were counted.
    iterations: int = 0
    ended_ns: int = 0


def simulate(
    models: Sequence[Served],
    asked: Sequence[Asked],
    device: DeviceSpec,
    sharing: str,
    plan_shared: PlanShared,
    *,
    training: Subject | None = None,
) -> Outcome:
    """Answer all rows; asked: by time.  A training job runs all the while.  Raises DoesNotFit."""
    return _Serving(models, asked, device, sharing, plan_shared, training).run()


@dataclass(slots=True)
class _Turn:
    left_ns: float
    wants: float
    granted_ns: int
    rows: list[Asked]
    #: A model's state was copied to the device for it.
    moved: bool


class _Serving:
    def __init__(
        self,
        models: Sequence[Served],
        asked: Sequence[Asked],
        device: DeviceSpec,
        sharing: str,
        plan_shared: PlanShared,
        training: Subject | None,
    ) -> None:
        self._models = models
        self._asked = deque(asked)
        self._device = device
        self._sharing = sharing
        self._plan_shared = plan_shared
        self._training = training
        #: The training job's number; the models' are their places.
        self._trains = len(models)
        self._turns = Turns(memory_nbytes=device.memory_nbytes, policy=SHARING_POLICIES[sharing])
        self._waiting: list[deque[Asked]] = [deque() for _ in models]
        self._last_used_ns = [-_NEVER_NS] * len(models)
        self._plans: dict[int, SharedPlan] = {}
        self._offered: dict[int, Share] = {}
        self._running: dict[int, _Turn] = {}
        #: Models whose states are on the device still, and are to leave it.
        self._lingering: set[int] = set()
        self._periods_ns: dict[tuple[int, int, int], int] = {}
        self._in_use: frozenset[int] = frozenset()
        self._planned_ns = 0.0
        self._now_ns = 0.0
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Answer all rows."""
        for job in self._members():
            self._turns.come_in(job, serves=job != self._trains)
        self._plan()
        while self._asked or any(self._waiting) or any(turn.rows for turn in self._running.values()):
            ends_ns = min((self._ends_ns(turn) for turn in self._running.values()), default=None)
            if self._asked and (ends_ns is None or self._asked[0].at_ns <= ends_ns):
                self._advance(max(self._now_ns, self._asked[0].at_ns))
                while self._asked and self._asked[0].at_ns <= self._now_ns:
                    row = self._asked.popleft()
                    self._waiting[row.model].append(row)
                    self._last_used_ns[row.model] = row.at_ns
            else:
                assert ends_ns is not None, "rows wait for nothing"
                self._advance(ends_ns)
                for job in [job for job, turn in self._running.items() if turn.left_ns <= 0.5]:
                    self._end_turn(job)
            self._go_on()
        self._outcome.ended_ns = int(self._now_ns)
        return self._outcome

    def _members(self) -> list[int]:
        return [*range(len(self._models)), *([self._trains] if self._training is not None else [])]

    @property
    def _speed(self) -> float:
        wanted = sum(turn.wants for turn in self._running.values())
        return min(1.0, self._device.concurrency / wanted) if wanted else 1.0

    def _ends_ns(self, turn: _Turn) -> float:
        return self._now_ns + turn.left_ns / self._speed

    def _advance(self, to_ns: float) -> None:
        passed_ns = (to_ns - self._now_ns) * self._speed
        for turn in self._running.values():
            turn.left_ns -= passed_ns
        self._now_ns = to_ns

    def _plan(self) -> None:
        """Make plans for all, by who is used now."""
        jobs = self._members()
        requests = [self._request(job) for job in jobs]
        for job, plan in zip(jobs, self._plan_shared(requests, self._device, self._sharing), strict=True):
            if job not in self._plans or self._plans[job].share != plan.share:
                self._offered[job] = plan.share
                self._turns.withdraw(job)
            self._plans[job] = plan
        self._in_use = self._used_lately()
        self._planned_ns = self._now_ns
        self._outcome.plannings += 1

    def _request(self, job: int) -> JobRequest:
        if job == self._trains:
            assert self._training is not None, "only then it is a member"
            return JobRequest(
                job_id=job, graph=self._training.graph, latencies_ns=self._training.latencies_ns
            )
        largest = self._models[job].sizes[self._models[job].largest]
        unused_ns = int(self._now_ns - self._last_used_ns[job])
        return JobRequest(
            job_id=job, graph=largest.graph, latencies_ns=largest.latencies_ns, unused_ns=unused_ns
        )

    def _used_lately(self) -> frozenset[int]:
        return frozenset(
            model for model, used_ns in enumerate(self._last_used_ns) if self._now_ns - used_ns < LATELY_NS
        )

    def _go_on(self) -> None:
        changed = True
        while changed:
            changed = False
            for job in sorted(self._offered):
                if job in self._running:
                    continue
                self._turns.dismiss(job)
                self._leave()
                if self._turns.begin_change(job, self._offered[job]):
                    self._turns.end_change(job)
                    del self._offered[job]
                    changed = True
        for job in self._members():
            has_work = job == self._trains or self._waiting[job]
            if has_work and job not in self._running and job not in self._offered:
                self._turns.ask(job, left_ns=0 if job != self._trains else _NEVER_NS)
        granted = self._turns.grant()
        while self._leave():
            granted += self._turns.grant()
        for job in granted:
            self._begin_turn(job)

    def _leave(self) -> bool:
        """Have states leave that were dismissed, which takes no time; return whether any were."""
        found = False
        while (job := self._turns.take_dismissed()) is not None:
            self._turns.gone(job)
            self._lingering.discard(job)
            found = True
        return found

    def _begin_turn(self, job: int) -> None:
        share = self._turns.share_of(job)
        assert not share.transit_nbytes, "one training has nobody to be moved beside"
        prediction = self._plans[job].job_plan.prediction
        rows: list[Asked] = []
        if job == self._trains:
            period_ns, busy_ns = prediction.time_ns, self._plans[job].job_plan.timeline.ops_ns
        else:
            model, waiting = self._models[job], self._waiting[job]
            rows = [waiting.popleft() for _ in range(min(len(waiting), model.largest))]
            size = min(size for size in model.sizes if size >= len(rows))
            period_ns, busy_ns = self._period_ns(job, size), model.sizes[size].eager_ns
        moving_ns = 0 if share.resident_nbytes or job in self._lingering else self._moving_ns(job)
        self._lingering.discard(job)
        takes_ns = period_ns + moving_ns
        self._running[job] = _Turn(
            left_ns=takes_ns,
            wants=min(1.0, busy_ns / takes_ns),
            granted_ns=int(self._now_ns),
            rows=rows,
            moved=bool(rows) and moving_ns > 0,
        )
        if rows:
            self._outcome.turns += 1
            self._outcome.moved += self._running[job].moved

    def _period_ns(self, job: int, size: int) -> int:
        """Return what so many rows take within the job's budget; as many as it is planned for if none fit."""
        plan = self._plans[job].job_plan
        key = (job, size, plan.budget_nbytes)
        if key not in self._periods_ns:
            model = self._models[job]
            request = JobRequest(
                job_id=job, graph=model.sizes[size].graph, latencies_ns=model.sizes[size].latencies_ns
            )
            try:
                (made,) = plan_jobs([request], self._device, plan.budget_nbytes)
                self._periods_ns[key] = made.prediction.time_ns
            except DoesNotFit:
                self._periods_ns[key] = plan.prediction.time_ns
        return self._periods_ns[key]

    def _moving_ns(self, job: int) -> int:
        if job == self._trains:
            assert self._training is not None, "only then it has turns"
            nbytes = self._training.graph.state_nbytes
            return copy_ns(nbytes, self._device.h2d_bytes_per_s) + copy_ns(
                nbytes, self._device.d2h_bytes_per_s
            )
        # What nobody writes has its copy on the host still.
        model = self._models[job]
        return copy_ns(model.sizes[model.largest].graph.state_nbytes, self._device.h2d_bytes_per_s)

    def _end_turn(self, job: int) -> None:
        turn = self._running.pop(job)
        for row in turn.rows:
            self._outcome.latencies_ns.append((row.model, int(self._now_ns) - row.at_ns))
        self._outcome.iterations += job == self._trains
        self._turns.serve(job, int(self._now_ns) - turn.granted_ns)
        stays = self._turns.share_of(job).resident_nbytes > 0
        if job == self._trains or stays:
            self._turns.end(job)
        else:
            # By its plan some of a large state may be on the host at any time.
            model, share = self._models[job], self._turns.share_of(job)
            state_nbytes = model.sizes[model.largest].graph.state_nbytes
            self._turns.end(job, lingering_nbytes=min(state_nbytes, share.ephemeral_nbytes))
            self._lingering.add(job)
        has_changed = self._used_lately() != self._in_use or turn.moved
        if has_changed and self._now_ns - self._planned_ns >= _USE_PAUSE_NS:
            self._plan()
