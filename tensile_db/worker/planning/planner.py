"""The worker's two child processes: one makes plans, one looks for what jobs should split.

To look for splits takes up to a minute, and plans of jobs that run must not wait for that.
"""

from tensile_db.scheduler.request import SplitsWithin
from tensile_db.worker.planning.child import Child
from tensile_db.worker.planning.planning_process import Answer, Broken, Question
from tensile_db.worker.planning.splitting_process import SplitSearch


class Planner(Child[Question, Answer]):
    """Asks for plans."""

    def __init__(self) -> None:
        super().__init__("tensile_db.worker.planning.planning_process", lambda why: Broken(message=why))


class SplitFinder(Child[SplitSearch, SplitsWithin | Broken]):
    """Asks for splits."""

    def __init__(self) -> None:
        super().__init__("tensile_db.worker.planning.splitting_process", lambda why: Broken(message=why))
