"""Random events, where one job at a time is let in."""

from hypothesis.stateful import invariant

from tests.examples import examples
from tests.unit.worker.state.world import World


class OneAtATime(World):
    """The same, where only one job at a time is let in, and those that serve."""

    alone = True
    max_jobs = 2

    @invariant()
    def no_two_jobs_are_at_work(self) -> None:
        at_work = [job for job in self.on_device if job in self.state.jobs and not self.serves(job)]
        assert len(at_work) <= 1


OneAtATime.TestCase.settings = examples(100, stateful_step_count=80)
TestOneAtATime = OneAtATime.TestCase
