"""The worker's child processes: one makes plans, one looks for what jobs should split, one for better plans.

To look for splits takes up to a minute, for a better plan seconds; plans that somebody waits for must not
wait for that.
"""

from collections.abc import Callable

from tensile_db.graph import StepGraph
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import SplitsWithin
from tensile_db.scheduler.sharing.improving import AsGood
from tensile_db.worker.planning.child import Child
from tensile_db.worker.planning.improving_process import Better, ImprovementAnswer, PlanInForce
from tensile_db.worker.planning.planning_process import Answer, Broken, Question
from tensile_db.worker.planning.splitting_process import SplitSearch


class Planner(Child[Question, Answer]):
    """Asks for plans."""

    def __init__(self) -> None:
        super().__init__("tensile_db.worker.planning.planning_process", lambda why: Broken(message=why))

    def foresee(self, graph: StepGraph, device: DeviceSpec) -> None:
        """Tell it of a graph that plans will be asked of, as soon as that is known; returns at once."""
        self.ask(Question(requests=(), device=device, captured=(graph,)), lambda _: None)


class SplitFinder(Child[SplitSearch, SplitsWithin | Broken]):
    """Asks for splits."""

    def __init__(self) -> None:
        super().__init__("tensile_db.worker.planning.splitting_process", lambda why: Broken(message=why))


class Improver(Child[PlanInForce | Question, ImprovementAnswer | Answer]):
    """Asks for better plans and lanes, and for explanations made with care."""

    def __init__(self) -> None:
        super().__init__("tensile_db.worker.planning.improving_process", lambda why: Broken(message=why))

    def plan(self, question: Question, answered: Callable[[Answer], None]) -> None:
        """Have jobs planned with care, where whoever arrives meanwhile does not wait for it; as `ask`."""

        def as_planned(answer: ImprovementAnswer | Answer) -> None:
            assert not isinstance(answer, Better | AsGood), "no better plan was asked for"
            answered(answer)

        self.ask(question, as_planned)
