"""What the controller and a job's thread share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tensile_db.catalog.jobs import JobRow
from tensile_db.graph import StepGraph
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.scheduler.request import JobRequest, SplitsWithin
from tensile_db.worker.mailbox import Mailbox, PlanOrder
from tensile_db.worker.messages import Event


@dataclass(frozen=True, kw_only=True)
class PlannerInput:
    """What a job's thread lets the planner know, once its graph is captured."""

    graph: StepGraph
    #: The thread goes on sampling into it.
    latencies: LatencyAverage
    policy: str
    max_swapping_rate: float
    memory_limit_nbytes: int | None
    #: As of a JobRequest.
    found_splits: SplitsWithin | None = None
    #: Of a job that serves a model, for how long nobody has asked for it; None: of other jobs.
    unused_ns: Callable[[], int] | None = None
    #: As of a JobRequest.
    repeats: bool = False


@dataclass(kw_only=True)
class Held:
    """A job of this worker, as the controller and its thread share it."""

    row: JobRow
    mailbox: Mailbox = field(default_factory=Mailbox)
    #: Set by the thread before it says that it is prepared.
    planner_input: PlannerInput | None = None
    #: The newest plan that was handed out; the controller's own.
    order: PlanOrder | None = None

    @property
    def request(self) -> JobRequest:
        """What the planner is asked about it now."""
        known = self.planner_input
        assert known is not None, "a job that is prepared has told what is to be planned"
        return JobRequest(
            job_id=self.row.id,
            graph=known.graph,
            latencies_ns=known.latencies.average_ns,
            policy=known.policy,
            max_swapping_rate=known.max_swapping_rate,
            memory_limit_nbytes=known.memory_limit_nbytes,
            found_splits=known.found_splits,
            former=None if self.order is None else self.order.job_plan.as_former,
            unused_ns=None if known.unused_ns is None else known.unused_ns(),
            repeats=known.repeats,
        )


#: Runs a job in the calling thread until it has ended, and posts events of it; never raises.
RunJob = Callable[[Held, Callable[[Event], None]], None]
