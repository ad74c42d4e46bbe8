"""Jobs that come and go on one simulated device, under a sharing policy: who waits, and for how long.

Decisions are the worker's own: shares by `scheduler/sharing/shared_plans.py` at every arrival and departure,
turns by `scheduler/sharing/turns.py`.  What a turn takes is the plan's predicted period, and the moving of
the state where that leaves with the turn; of what is moved ahead only the part that is not over when the
turn begins.  Jobs whose turns overlap slow each other down as soon as together they want more of the device
than it has: each wants its ops' part of its period.  Time is in ns.

Source: ours.
Differs: plans are made at once and cost no time; `bench plan-time` has what they really take.  States that
are moved ahead do not slow down the swaps of those who compute.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensile_db.graph import StepGraph
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.laning import moving_ns
from tensile_db.scheduler.sharing.member import Phase
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.share import Share
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.scheduler.sharing.turns import Turns

_SECOND = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job, when it comes and how long it is."""

    graph: StepGraph
    #: By op id.
    latencies_ns: tuple[int, ...]
    at_ns: int
    iterations: int
    priority: int = 0
    policy: str = "auto"
    #: Between two iterations, in which the job wants nothing of the device: what makes its batches, say.
    host_ns: int = 0
    #: In each turn, at least, while so many are left.
    iterations_a_turn: int = 1


@dataclass(slots=True, kw_only=True)
class Stay:
    """What became of a job."""

    submission: Submission
    began_ns: int = -1
    done_ns: int = -1
    iterations: int = 0
    #: (when, iterations so far), after each of its turns.
    turns: list[tuple[int, int]] = field(default_factory=list)

    @property
    def completion_ns(self) -> int:
        """From its arrival to its end (JCT)."""
        return self.done_ns - self.submission.at_ns

    @property
    def queueing_ns(self) -> int:
        """From its arrival to its first turn."""
        return self.began_ns - self.submission.at_ns


#: As `shared_plans.plan_shared`.
PlanShared = Callable[[Sequence[JobRequest], DeviceSpec, str], Sequence[SharedPlan]]


def simulate(
    submissions: Sequence[Submission],
    device: DeviceSpec,
    sharing: str,
    plan_shared: PlanShared,
    *,
    max_jobs: int = 16,
) -> list[Stay]:
    """Run all jobs to their ends; return what became of each.

    max_jobs: planned together; others wait, by priority and age, as they do for a worker to claim them.
    """
    return _Device(submissions, device, sharing, plan_shared, max_jobs).run()


def summary(stays: Sequence[Stay]) -> dict[str, Any]:
    """Return makespan, mean queueing, mean and 95 % completion time, in s."""
    first_ns = min(stay.submission.at_ns for stay in stays)
    return {
        "makespan_s": round((max(stay.done_ns for stay in stays) - first_ns) / _SECOND, 1),
        "queueing_s": round(sum(stay.queueing_ns for stay in stays) / len(stays) / _SECOND, 1),
        "completion_s": round(sum(stay.completion_ns for stay in stays) / len(stays) / _SECOND, 1),
        "completion_95_s": round(percentile([stay.completion_ns for stay in stays], 95) / _SECOND, 1),
    }


def completions_s(stays: Sequence[Stay]) -> list[float]:
    """Return each job's completion time in s, in the jobs' order."""
    return [round(stay.completion_ns / _SECOND, 1) for stay in stays]


def percentile(times: Sequence[float], percent: int) -> float:
    """Return the least of the times that so many percent of them do not exceed."""
    return sorted(times)[max(0, -(-percent * len(times) // 100) - 1)]


@dataclass(slots=True)
class _Turn:
    #: What is left of it, were the job alone.
    left_ns: float
    iterations: int
    #: Of the device.
    wants: float
    granted_ns: int


class _Device:
    def __init__(
        self,
        submissions: Sequence[Submission],
        device: DeviceSpec,
        sharing: str,
        plan_shared: PlanShared,
        max_jobs: int,
    ) -> None:
        self._stays = [Stay(submission=submission) for submission in submissions]
        self._device = device
        self._sharing = sharing
        self._plan_shared = plan_shared
        self._max_jobs = 1 if SHARING_POLICIES[sharing].alone else max_jobs
        self._turns = Turns(memory_nbytes=device.memory_nbytes, policy=SHARING_POLICIES[sharing])
        self._arrivals = [(submission.at_ns, job) for job, submission in enumerate(submissions)]
        heapq.heapify(self._arrivals)
        self._line: list[tuple[int, int]] = []
        self._newcomers: list[int] = []
        self._plans: dict[int, SharedPlan] = {}
        #: Shares that have not been taken up yet.
        self._offered: dict[int, Share] = {}
        self._running: dict[int, _Turn] = {}
        #: When jobs that are between iterations want the device again.
        self._away: dict[int, float] = {}
        #: When the state of jobs that approach is there.
        self._there: dict[int, float] = {}
        #: When the state of jobs that leave is gone.
        self._gone: dict[int, float] = {}
        self._now_ns = 0.0

    def run(self) -> list[Stay]:
        """Run all jobs to their ends."""
        while self._arrivals or self._plans:
            ends_ns = self._next_ns()
            if self._arrivals and (ends_ns is None or self._arrivals[0][0] <= ends_ns):
                self._advance(max(self._now_ns, self._arrivals[0][0]))
                while self._arrivals and self._arrivals[0][0] <= self._now_ns:
                    _, job = heapq.heappop(self._arrivals)
                    heapq.heappush(self._line, (-self._stays[job].submission.priority, job))
                self._let_in()
            else:
                assert ends_ns is not None, f"jobs {sorted(self._plans)} wait for nothing"
                self._advance(ends_ns)
                for job in [job for job, turn in self._running.items() if turn.left_ns <= 0.5]:
                    self._end_turn(job)
                for job in [job for job, at_ns in self._away.items() if at_ns <= self._now_ns + 0.5]:
                    del self._away[job]
                for job in [job for job, at_ns in self._gone.items() if at_ns <= self._now_ns + 0.5]:
                    del self._gone[job]
                    self._turns.gone(job)
            self._go_on()
        return self._stays

    @property
    def _speed(self) -> float:
        """How fast turns proceed, as a share of a lone one's."""
        wanted = sum(turn.wants for turn in self._running.values())
        return min(1.0, self._device.concurrency / wanted) if wanted else 1.0

    def _next_ns(self) -> float | None:
        """Return when the next turn ends, a state is gone, or a job comes back to the device."""
        times_ns = [self._now_ns + turn.left_ns / self._speed for turn in self._running.values()]
        return min([*times_ns, *self._away.values(), *self._gone.values()], default=None)

    def _advance(self, to_ns: float) -> None:
        passed_ns = (to_ns - self._now_ns) * self._speed
        for turn in self._running.values():
            turn.left_ns -= passed_ns
        self._now_ns = to_ns

    def _end_turn(self, job: int) -> None:
        turn, stay = self._running.pop(job), self._stays[job]
        stay.iterations += turn.iterations
        stay.turns.append((int(self._now_ns), stay.iterations))
        self._turns.serve(job, int(self._now_ns) - turn.granted_ns)
        self._turns.end(job)
        if self._turns.phase_of(job) is Phase.LEAVING:
            transit_nbytes = self._turns.share_of(job).transit_nbytes
            self._gone[job] = self._now_ns + copy_ns(transit_nbytes, self._device.d2h_bytes_per_s)
        if stay.iterations >= stay.submission.iterations:
            stay.done_ns = int(self._now_ns)
            self._turns.leave(job)
            self._gone.pop(job, None)
            del self._plans[job]
            self._offered.pop(job, None)
            self._let_in(departed=True)
        elif stay.submission.host_ns:
            self._away[job] = self._now_ns + turn.iterations * stay.submission.host_ns

    def _let_in(self, *, departed: bool = False) -> None:
        """Let in whom there is a place for, and plan for all that are in."""
        came = False
        while self._line and len(self._plans) + len(self._newcomers) < self._max_jobs:
            _, job = heapq.heappop(self._line)
            self._turns.come_in(job, priority=self._stays[job].submission.priority)
            self._newcomers.append(job)
            came = True
        if not came and not departed:
            return
        jobs = sorted({*self._plans, *self._newcomers})
        self._newcomers.clear()
        if not jobs:
            return
        requests = [self._request(job) for job in jobs]
        for job, plan in zip(jobs, self._plan_shared(requests, self._device, self._sharing), strict=True):
            if job not in self._plans or self._plans[job].share != plan.share:
                self._offered[job] = plan.share
                self._turns.withdraw(job)
                if self._there.pop(job, None) is not None:
                    self._turns.gone(job)
            self._plans[job] = plan

    def _go_on(self) -> None:
        """At their boundaries, jobs take up their shares and ask for turns; give those that can be given."""
        changed = True
        while changed:
            changed = False
            for job in sorted(self._offered):
                if self._is_free(job) and self._turns.begin_change(job, self._offered[job]):
                    self._turns.end_change(job)
                    del self._offered[job]
                    changed = True
        for job in sorted(self._plans):
            if self._is_free(job) and job not in self._offered and job not in self._away:
                self._turns.ask(job, left_ns=self._left(job) * self._period_ns(job), ahead=True)
        for job in self._turns.grant():
            self._begin_turn(job)
        for job in sorted(self._plans):
            if job not in self._there and self._turns.phase_of(job) is Phase.APPROACHING:
                transit_nbytes = self._turns.share_of(job).transit_nbytes
                self._there[job] = self._now_ns + copy_ns(transit_nbytes, self._device.h2d_bytes_per_s)

    def _is_free(self, job: int) -> bool:
        return job not in self._running and job not in self._gone

    def _begin_turn(self, job: int) -> None:
        stay = self._stays[job]
        if stay.began_ns < 0:
            stay.began_ns = int(self._now_ns)
        least = stay.submission.iterations_a_turn
        iterations = min(max(self._turns.share_of(job).iterations, least), self._left(job))
        busy_ns = iterations * self._plans[job].job_plan.timeline.ops_ns
        takes_ns = iterations * self._period_ns(job) + self._moving_ns(job)
        self._running[job] = _Turn(
            left_ns=takes_ns,
            iterations=iterations,
            wants=min(1.0, busy_ns / takes_ns),
            granted_ns=int(self._now_ns),
        )

    def _left(self, job: int) -> int:
        return self._stays[job].submission.iterations - self._stays[job].iterations

    def _period_ns(self, job: int) -> int:
        return self._plans[job].job_plan.prediction.time_ns

    def _moving_ns(self, job: int) -> float:
        """Return what a turn that begins now takes for moving its state."""
        share = self._turns.share_of(job)
        if share.transit_nbytes:
            not_ahead_ns = copy_ns(share.transit_nbytes, self._device.h2d_bytes_per_s)
            return max(0.0, self._there.pop(job, self._now_ns + not_ahead_ns) - self._now_ns)
        if share.resident_nbytes:
            return 0.0
        return moving_ns(self._stays[job].submission.graph.state_nbytes, self._device)

    def _request(self, job: int) -> JobRequest:
        submission = self._stays[job].submission
        return JobRequest(
            job_id=job,
            graph=submission.graph,
            latencies_ns=submission.latencies_ns,
            policy=submission.policy,
        )
