"""The questions behind an explanation, put to the planning processes one after another.

Each is put when the one before is answered, so that plans for running jobs need wait for one at most.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.worker.mailbox import Explanation, FrontierPoint
from tensile_db.worker.planning.planning_process import Answer, Broken, Planned, Question

#: Enough to see where time begins to rise, few enough to be planned while someone waits.
_BUDGETS = 6

Ask = Callable[[Question, Callable[[Answer], None]], None]


def ask_explanation(
    ask: Ask,
    ask_with_care: Ask,
    own: JobRequest,
    neighbours: Sequence[JobRequest],
    device: DeviceSpec,
    sharing: str,
    explain: Callable[[Explanation], None],
) -> None:
    """Have the job planned alone, with its neighbours, and for budgets down to the least; then explain it.

    neighbours: what runs; where there is any, the job is planned in a hurry, so as not to keep it waiting.
    The budgets always are: there are many, and they show how time rises, not the best that can be had.
    ask_with_care: asks who plans the job where nothing runs, which takes seconds; no newcomer waits for it.
    sharing: how the worker's jobs share the device.
    `ask`, `ask_with_care` and `explain` return at once; `explain` is called once, in the thread that answers.
    """
    runs_alone = SHARING_POLICIES[sharing].alone
    own = replace(own, hurried=bool(neighbours))

    def answered_alone(alone: Answer) -> None:
        if not neighbours or runs_alone:
            ask_frontier(alone, None)
            return
        together = Question(requests=(*neighbours, own), device=device, sharing=sharing)
        ask(together, lambda answer: ask_frontier(alone, answer))

    def ask_frontier(alone: Answer, together: Answer | None) -> None:
        budgets = _budgets(own, alone)
        points: list[FrontierPoint] = []

        def ask_next() -> None:
            if len(points) == len(budgets):
                must_wait = runs_alone and bool(neighbours)
                explain(
                    Explanation(alone=alone, together=together, must_wait=must_wait, frontier=tuple(points))
                )
                return
            # Whatever the device has and the job's own limit is: this is what would be.
            within = replace(device, memory_nbytes=budgets[len(points)])
            supposed = replace(own, memory_limit_nbytes=None, splits_by_need=True, hurried=True)
            ask(Question(requests=(supposed,), device=within), answered)

        def answered(answer: Answer) -> None:
            points.append(_point(budgets[len(points)], answer))
            ask_next()

        ask_next()

    ask_alone = ask if neighbours else ask_with_care
    ask_alone(Question(requests=(own,), device=device), answered_alone)


def _budgets(own: JobRequest, alone: Answer) -> tuple[int, ...]:
    """Return budgets in even steps from what the largest op needs as a whole to vanilla's peak.

    No budgets where planning fails: it would fail again.
    """
    if isinstance(alone, Broken):
        return ()
    least = lower_bound_peak_nbytes(own.graph)
    span = vanilla.peak_nbytes(own.graph) - least
    return tuple(sorted({least + span * step // (_BUDGETS - 1) for step in range(_BUDGETS)}))


def _point(budget_nbytes: int, answer: Answer) -> FrontierPoint:
    """Return what is kept of an answer: plans have megabytes."""
    if not isinstance(answer, Planned):
        return FrontierPoint(budget_nbytes=budget_nbytes, prediction=None)
    return FrontierPoint(budget_nbytes=budget_nbytes, prediction=answer.plans[-1].prediction)
