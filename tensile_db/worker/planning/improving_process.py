"""Looks for better plans and lanes while nobody waits, and makes those of explanations: a process of its own.

Whoever arrives meanwhile is planned at once, in the planner's process; what is found here is of use only to a
job that keeps its plan and share all the same.
"""

import os
import time
from dataclasses import dataclass, replace

from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.sharing.improving import AsGood, improved
from tensile_db.scheduler.sharing.share import Share
from tensile_db.scheduler.sharing.shared_plan import Within
from tensile_db.worker.planning.child import answer_questions
from tensile_db.worker.planning.known_graphs import KnownGraphs
from tensile_db.worker.planning.planning_process import Answer, Broken, Question, with_known_graphs
from tensile_db.worker.planning.planning_process import answer as plan

#: Added to its niceness: jobs' threads, and plans that are waited for, come first.
_NICE = 5


@dataclass(frozen=True, kw_only=True)
class PlanInForce:
    """Asks for a better plan than the request's former one; as `improved`."""

    request: JobRequest
    within: Within
    share: Share


@dataclass(frozen=True, kw_only=True)
class Better:
    """A plan that is worth changing to."""

    plan: JobPlan
    share: Share
    #: How long it was looked for.
    planning_ns: int


ImprovementAnswer = Better | AsGood | Broken


def answer(asked: PlanInForce) -> ImprovementAnswer:
    """Look; every failure is an answer."""
    begin_ns = time.perf_counter_ns()
    try:
        found = improved(asked.request, asked.within, asked.share)
    except Exception as error:  # noqa: BLE001  # whatever it is, the job has a plan
        return Broken(message=f"{type(error).__name__}: {error}")
    if isinstance(found, AsGood):
        return found
    return Better(plan=found.job_plan, share=found.share, planning_ns=time.perf_counter_ns() - begin_ns)


def main() -> None:
    """Answer questions until there are no more."""
    os.nice(_NICE)
    graphs = KnownGraphs()

    def answer_known(asked: PlanInForce | Question) -> ImprovementAnswer | Answer:
        if isinstance(asked, Question):
            # Lanes that were chosen at once are chosen with care.
            return plan(with_known_graphs(asked, graphs))
        (graph,) = graphs.known([asked.request.graph])
        return answer(replace(asked, request=replace(asked.request, graph=graph)))

    answer_questions(answer_known)
