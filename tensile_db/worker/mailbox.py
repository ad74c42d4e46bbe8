"""What the controller tells a job's thread: to start, a new plan, to stop.  Safe for both.

The thread looks into it at its boundaries, between iterations; only a stop that needs no checkpoint is
looked for within an iteration, by `must_break_off`.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensile_db.errors import TensileError
from tensile_db.scheduler.plan import Prediction
from tensile_db.scheduler.request import JobPlan
from tensile_db.scheduler.sharing.share import Share
from tensile_db.scheduler.sharing.shared_plan import Within
from tensile_db.worker.messages import PlanningId, Reason, StopReason
from tensile_db.worker.planning.planning_process import Answer


class Stopped(Exception):
    """The job was told to stop; raised at a boundary, or within an iteration that must break off."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class PlanOrder:
    """A plan to be followed, and how it came to be."""

    planning: PlanningId
    job_plan: JobPlan
    #: What the job may hold of the device from the plan's adoption on.
    share: Share
    #: What the plan was made for.
    within: Within
    reason: Reason
    planning_ns: int
    #: What the plan was made from, by op id.
    latencies_ns: Sequence[int]

    @property
    def budget_nbytes(self) -> int:
        """The most that the job may hold."""
        return self.share.budget_nbytes


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What a job goes on by that was planned anew, and to which its plan and its memory were given again."""

    #: What the plan still holds for, by op id.
    latencies_ns: Sequence[int]
    #: Iterations that a turn lasts from now on, where others wait for it.
    iterations: int


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """What a budget would come to; None: the policy has no plan within it."""

    budget_nbytes: int
    prediction: Prediction | None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What would be: the job planned alone, and among those that run now (None: there are none)."""

    alone: Answer
    together: Answer | None
    #: Jobs run that must come to their end first, for the worker runs one at a time.
    must_wait: bool = False
    #: The job alone within other budgets, ascending.
    frontier: tuple[FrontierPoint, ...] = ()


class Mailbox:
    """Messages for one job's thread; a newer plan replaces one that was not yet taken."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._order: PlanOrder | None = None
        self._confirmation: Confirmation | None = None
        self._refusal: TensileError | None = None
        self._explanation: Explanation | None = None
        self._stop: StopReason | None = None
        #: The controller has let the job prepare another graph.
        self._may_prepare = False

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the job must stop, if it must."""
        return self._stop

    def must_break_off(self) -> bool:
        """Whether to stop within the iteration: nothing of the job is to be kept."""
        return self._stop in (StopReason.CANCELLED, StopReason.LEASE_LOST)

    def check(self) -> None:
        """Raise Stopped if the job must stop."""
        if self._stop is not None:
            raise Stopped(self._stop)

    def stop(self, reason: StopReason) -> None:
        """Tell the job to stop."""
        with self._changed:
            self._stop = reason
            self._changed.notify_all()

    def wait_for_stop(self, seconds: float) -> None:
        """Wait, or until the job is told to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop, seconds)

    def wake(self) -> None:
        """Have a thread that waits for news look up."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_news(self, seconds: float, also: Callable[[], object]) -> None:
        """Wait until there is a newer plan, a reason to stop, or `also` says so; at most so many seconds.

        also: asked at every `wake`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._order or also(), seconds)

    def refuse(self, error: TensileError) -> None:
        """Tell the waiting job that it cannot be run."""
        with self._changed:
            self._refusal = error
            self._changed.notify_all()

    def order(self, order: PlanOrder) -> None:
        """Tell the job to follow a plan."""
        with self._changed:
            self._order, self._confirmation = order, None
            self._changed.notify_all()

    def begin_stage(self) -> None:
        """Let the job prepare another graph; what it was ordered for the last one is void."""
        with self._changed:
            self._order = self._confirmation = None
            self._may_prepare = True
            self._changed.notify_all()

    def wait_for_stage(self) -> None:
        """Wait until the job may prepare another graph.  Raises Stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._may_prepare)
            self.check()
            self._may_prepare = False

    def confirm(self, confirmation: Confirmation) -> None:
        """Tell the job that planning gave the plan that was ordered last."""
        with self._changed:
            self._confirmation = confirmation

    def explain(self, explanation: Explanation) -> None:
        """Tell the waiting job what would be."""
        with self._changed:
            self._explanation = explanation
            self._changed.notify_all()

    def has_order(self) -> bool:
        """Whether there is a newer plan."""
        return self._order is not None

    def take_order(self) -> PlanOrder | None:
        """Return the newest plan, once."""
        with self._changed:
            order, self._order = self._order, None
            return order

    def take_confirmation(self) -> Confirmation | None:
        """Return what the newest plan was confirmed with, once; None while that is yet to be taken."""
        with self._changed:
            if self._order is not None:
                return None
            confirmation, self._confirmation = self._confirmation, None
            return confirmation

    def wait_for_order(self) -> PlanOrder:
        """Wait for the first plan.  Raises Stopped, or why the job cannot be run."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._refusal or self._order)
            self._raise()
            order, self._order = self._order, None
            assert order is not None
            return order

    def wait_for_explanation(self) -> Explanation:
        """Wait for what would be.  Raises Stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._refusal or self._explanation)
            self._raise()
            assert self._explanation is not None
            return self._explanation

    def _raise(self) -> None:
        self.check()
        if self._refusal is not None:
            raise self._refusal
