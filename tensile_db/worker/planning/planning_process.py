"""The memory scheduler as a process of its own, for planning in the worker's would hold up every job's ops.

Python runs one thread at a time; a planner's loop beside a job's thread costs the job milliseconds an op.
Requests and answers are pickles on standard input and output, between a parent and its own child
(`planner.py`).  The child ends when its input does, and so with its parent.
Imports no torch, and so starts in a fraction of a second.
"""

import gc
import pickle
import signal
import sys
import time
from dataclasses import dataclass, replace

from tensile_db.errors import DoesNotFit, InvalidPlan, InvalidRequest, TensileError
from tensile_db.graph import StepGraph
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.sharing.headroom import with_headroom
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.shared_plans import plan_shared

#: Graphs of questions past that are kept.
KEPT_GRAPHS = 16


@dataclass(frozen=True, kw_only=True)
class Question:
    """Jobs to be planned together."""

    requests: tuple[JobRequest, ...]
    device: DeviceSpec
    #: How they share the device; a name of SHARING_POLICIES.
    sharing: str = "auto"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plans, in the requests' order."""

    plans: tuple[JobPlan, ...]
    shares: tuple[Share, ...]
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
        shared = plan_shared(question.requests, question.device, question.sharing)
        if question.device.replays:
            shared = with_headroom(shared, question.requests, question.device)
        promised_nbytes = needed_nbytes(plan.share for plan in shared)
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
        planning_ns=time.perf_counter_ns() - begin_ns,
    )


class Graphs:
    """The graphs of the questions asked last, one object each: what is known of a graph stays known."""

    def __init__(self) -> None:
        self._by_digest: dict[str, StepGraph] = {}

    def known(self, question: Question) -> Question:
        """Return the question with the graphs that are known."""
        asked: dict[str, StepGraph] = {}
        for request in question.requests:
            digest = request.graph.digest
            asked[digest] = self._by_digest.pop(digest, request.graph)
        self._by_digest |= asked
        # All of this question's: many models may be served at a time.
        for digest in tuple(self._by_digest)[: -max(KEPT_GRAPHS, len(asked))]:
            del self._by_digest[digest]
        requests = tuple(
            replace(request, graph=self._by_digest.get(request.graph.digest, request.graph))
            for request in question.requests
        )
        return replace(question, requests=requests)


def main() -> None:
    """Answer questions until there are no more."""
    graphs = Graphs()
    # Ctrl-C in a terminal reaches every process of it; this one ends with its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Plans are many objects and few cycles: looking for those takes a quarter of the time, so it is done
    # between answers.
    gc.disable()
    while True:
        try:
            question = pickle.load(sys.stdin.buffer)  # noqa: S301  # written by the parent
        except EOFError:
            return
        pickle.dump(answer(graphs.known(question)), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
        sys.stdout.buffer.flush()
        gc.collect()
