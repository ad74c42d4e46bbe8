"""The worker's decisions under every order of events and faults, against a model of what surrounds it."""

from tests.examples import examples
from tests.unit.worker.state.world import World

World.TestCase.settings = examples(300, stateful_step_count=40)
TestWorld = World.TestCase
