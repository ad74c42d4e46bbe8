"""What the memory scheduler is asked, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensile_db.graph import StepGraph, TensorId
from tensile_db.scheduler.plan import DeviceSpec, Plan, Prediction, Rewriting, Split
from tensile_db.scheduler.program import Program
from tensile_db.scheduler.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class SplitsWithin:
    """What `auto` splits of a job that never has more memory than a limit; policies/in_parts.py finds it."""

    limit_nbytes: int
    splits: tuple[Split, ...]
    #: Tensors that are packed first, where anything is split or the job needs more as it was captured; else
    #: the moment decides.
    packed: tuple[TensorId, ...] = ()
    #: Where no splits suffice, the least memory that would do; else None.
    least_nbytes: int | None = None

    @property
    def rewriting(self) -> Rewriting:
        """What is done to the graph."""
        return Rewriting(packed=self.packed, splits=self.splits)


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job to be planned together with the others of its device."""

    job_id: int
    graph: StepGraph
    #: By op id, ns; shape (ops,).
    latencies_ns: Sequence[int]
    policy: str = "auto"
    #: Of the tensors swapped by all jobs, the share that this job may have; lower is a higher priority.
    max_swapping_rate: float = 1.0
    #: The job's own limit; None: only the device's.
    memory_limit_nbytes: int | None = None
    #: The plan in force, to begin with where the policy can; None: this is the job's first plan.
    former: "Former | None" = None
    #: Others wait for the answer, or it is one of many: nothing is searched for that takes longer than
    #: planning does.
    hurried: bool = False
    #: Somebody waits for the job's first iteration: its first plan is made as quickly as later ones are, and
    #: may be slower than need be.  What `auto` splits is not decided by it.
    at_once: bool = False
    #: Bears on plans made at once alone: others wait with the job, which is new among them, so that its first
    #: plan looks at less.
    in_haste: bool = False
    #: Nobody waits: the plan in force, which fits, stays unless another one is faster, however long it takes
    #: to find that.
    improving: bool = False
    #: `auto`, `auto_exact` and `auto_split` split ops only where they must: looking for splits takes longer
    #: than all else, and of a job whose limit is its share of the moment they depend on who else runs.
    splits_by_need: bool = False
    #: Found before, for looking takes long; None, or those of another limit: they are looked for now.
    found_splits: SplitsWithin | None = None
    #: Of a job that serves a model, for how long nobody has asked for it; None: of other jobs.
    unused_ns: int | None = None
    #: Of a job that goes forward: it has so many iterations that one is worth being taken down and replayed,
    #: as trainings' always are.
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What the delays of a plan's copies are for, and how long an iteration takes then."""

    #: By op id of the graph as the plan rewrites it, ns.
    latencies_ns: tuple[int, ...] = field(hash=False)
    device: DeviceSpec
    period_ns: int

    def is_of(self, latencies_ns: Sequence[int], device: DeviceSpec) -> bool:
        """Whether nothing has changed since."""
        return self.device == device and self.latencies_ns == tuple(latencies_ns)


@dataclass(frozen=True, kw_only=True)
class Former:
    """A plan in force, and what was said of it."""

    #: Long, and so left out of the hash: what else is said of it tells most apart.
    plan: Plan = field(hash=False)
    timing: Timing
    guaranteed_peak_nbytes: int
    #: Time of an iteration over the time of its ops alone (EOR), when the plan's choices were made.  A plan
    #: that is kept through many small drifts is still measured by that.
    eor: float
    #: It was made at once, and nobody has looked for a better one.
    quick: bool = False
    #: The budget within which a better one was looked for in vain; 0: none was.
    looked_within_nbytes: int = 0


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """A job's plan, verified."""

    job_id: int
    plan: Plan
    program: Program
    prediction: Prediction
    timeline: Timeline
    timing: Timing
    #: The EOR when the plan's choices were made; None: they are new.
    former_eor: float | None = None
    #: It was made at once: `improving` may find a better one within the same budget.
    quick: bool = False
    #: As of a Former.
    looked_within_nbytes: int = 0

    @property
    def budget_nbytes(self) -> int:
        """What the job must be granted to run the program: its guaranteed peak."""
        return self.program.guaranteed_peak_nbytes

    @property
    def as_former(self) -> Former:
        """What the job's next planning begins with."""
        said = self.prediction
        return Former(
            plan=self.plan,
            timing=self.timing,
            guaranteed_peak_nbytes=said.guaranteed_peak_nbytes,
            eor=said.eor if self.former_eor is None else self.former_eor,
            quick=self.quick,
            looked_within_nbytes=self.looked_within_nbytes,
        )
