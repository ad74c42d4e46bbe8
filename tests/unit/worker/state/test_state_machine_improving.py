"""Random events, where two jobs run already, for which there may be better plans."""

from tests.examples import examples
from tests.unit.worker.state.world import World


class Running(World):
    def __init__(self) -> None:
        super().__init__()
        for _ in range(2):
            self.submit(least=30, priority=0, kind="")
        self.answer_claim()
        for _ in range(2):
            self.finish_preparing()
        while not self.improvements:
            if self.plannings:
                self.answer_planning(lanes=2, stays=50, ahead=0, quick=True)
            for job in self.can_adopt():
                self.try_to_adopt(job)


Running.TestCase.settings = examples(200, stateful_step_count=30)
TestRunning = Running.TestCase
