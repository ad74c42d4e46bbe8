"""The memory scheduler as a process of its own (`child.py`)."""

import time
from dataclasses import dataclass, replace

from tensile_db.errors import DoesNotFit, InvalidPlan, InvalidRequest, TensileError
from tensile_db.graph import StepGraph
from tensile_db.scheduler.foreseeing import foresee
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.sharing.arrivals import plan_arrivals
from tensile_db.scheduler.sharing.recordable import plan_recordable
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan, Within
from tensile_db.worker.planning.child import answer_questions
from tensile_db.worker.planning.known_graphs import KnownGraphs


@dataclass(frozen=True, kw_only=True)
class Question:
    """Jobs to be planned together."""

    requests: tuple[JobRequest, ...]
    device: DeviceSpec
    #: How they share the device; a name of SHARING_POLICIES.
    sharing: str = "auto"
    #: What each one's plan in force was made for; empty: of no interest.
    in_force: tuple[Within | None, ...] = ()
    #: What each one may hold now; None: it arrives.  Empty: of no interest.
    shares: tuple[Share | None, ...] = ()
    #: Somebody waits for a first iteration.
    at_once: bool = False
    #: Graphs that plans will be asked of: what they begin with is worked out when this is answered.
    captured: tuple[StepGraph, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plans, in the requests' order.  Who is left out keeps plan and share, and nobody looked at them."""

    plans: tuple[JobPlan, ...]
    shares: tuple[Share, ...]
    #: What each was made for.
    within: tuple[Within, ...]
    planning_ns: int


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """No plans keep the jobs within the memory."""

    needed_nbytes: int
    budget_nbytes: int
    #: What else to try; "": nothing in particular.
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The planner failed: by a defect of ours, or at a request that no plan can meet."""

    message: str
    #: What to ask for instead; None: it was a defect.
    hint: str | None = None


Answer = Planned | Infeasible | Broken


def planning_error(message: str, hint: str | None) -> TensileError:
    """Return the error of a job that could not be planned, from a `Broken`."""
    if hint is None:
        return TensileError(f"planning the job failed: {message}")
    return InvalidRequest(message, hint=hint)


def answer(question: Question) -> Answer:
    """Plan; every failure is an answer."""
    begin_ns = time.perf_counter_ns()
    try:
        shared = _plan_arrivals(question)
        kept = [share for share in question.shares if share is not None] if shared else []
        if shared is None:
            shared = _plan_all(question)
        promised_nbytes = needed_nbytes([*kept, *(plan.share for plan in shared)])
        if promised_nbytes > question.device.memory_nbytes:
            raise InvalidPlan(f"the plans hold {promised_nbytes} of {question.device.memory_nbytes} bytes")
    except DoesNotFit as refusal:
        return Infeasible(
            needed_nbytes=refusal.needed_nbytes, budget_nbytes=refusal.budget_nbytes, hint=refusal.hint
        )
    except InvalidRequest as error:
        return Broken(message=error.message, hint=error.hint)
    except Exception as error:  # noqa: BLE001  # whatever it is, only the jobs asked for are concerned
        return Broken(message=f"{type(error).__name__}: {error}")
    return Planned(
        plans=tuple(plan.job_plan for plan in shared),
        shares=tuple(plan.share for plan in shared),
        within=tuple(plan.within for plan in shared),
        planning_ns=time.perf_counter_ns() - begin_ns,
    )


def _plan_arrivals(question: Question) -> tuple[SharedPlan, ...] | None:
    if not (question.at_once and question.shares):
        return None
    return plan_arrivals(question.requests, question.device, question.sharing, question.shares)


def _plan_all(question: Question) -> tuple[SharedPlan, ...]:
    requests, device, in_force = question.requests, question.device, question.in_force
    return plan_recordable(requests, device, question.sharing, in_force=in_force, at_once=question.at_once)


def with_known_graphs(question: Question, graphs: KnownGraphs) -> Question:
    """Return the question about graphs as they are known."""
    requests, captured = question.requests, question.captured
    known = graphs.known([*(request.graph for request in requests), *captured])
    return replace(
        question,
        requests=tuple(replace(request, graph=known[place]) for place, request in enumerate(requests)),
        captured=known[len(requests) :],
    )


def main() -> None:
    """Answer questions until there are no more."""
    graphs = KnownGraphs()

    def answer_known(question: Question) -> Answer:
        return answer(with_known_graphs(question, graphs))

    def prepare(question: Question) -> None:
        known = with_known_graphs(question, graphs)
        for graph in (*(request.graph for request in known.requests), *known.captured):
            foresee(graph)

    answer_questions(answer_known, prepare)
