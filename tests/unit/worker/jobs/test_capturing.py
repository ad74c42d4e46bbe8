"""Which of a job's options its network is built with."""

import threading

import pytest
import torch
from torch import nn

from tensile_db.capture.networks import architectures
from tensile_db.worker.jobs import capturing
from tests.patience import PATIENCE_S

OPTIONS = {"wide": 6, "dropout": 0.5, "seed_of_theirs": None, "betas": [0.9, 0.99], "device": "cpu"}


@pytest.fixture
def built_with(monkeypatch):
    """A network of a package; what it was built with, again and again."""
    seen = []

    class Point:
        value = "offering:build"

        def load(self):
            def build(num_outputs, in_channels, image_size, *, wide=4, **others):
                seen.append({"wide": wide, **others})
                return nn.Sequential(nn.Linear(in_channels, wide), nn.Linear(wide, num_outputs))

            return build

    monkeypatch.setattr(architectures, "_offered", lambda: {"theirs": Point()})
    return seen


def test_a_package_gets_its_options_and_none_of_the_jobs_own(built_with):
    network = capturing.build("theirs", num_outputs=2, input_shape=(3,), seed=0, options=OPTIONS)
    assert built_with == [{"wide": 6, "dropout": 0.5, "seed_of_theirs": None}]
    assert [tuple(weight.shape) for weight in network.parameters()] == [(6, 3), (6,), (2, 6), (2,)]


@pytest.mark.slow
def test_a_job_that_waits_for_anothers_network_is_asked_to_stop_meanwhile(monkeypatch):
    building, may_end = threading.Event(), threading.Event()

    class Slow:
        value = "offering:build"

        def load(self):
            def build(num_outputs, in_channels, image_size):
                building.set()
                assert may_end.wait(PATIENCE_S)
                return nn.Linear(in_channels, num_outputs)

            return build

    class StoppedWhileWaiting(Exception):
        pass

    asked = []

    def check():
        asked.append(building.is_set())
        if len(asked) == 3:
            raise StoppedWhileWaiting

    monkeypatch.setattr(architectures, "_offered", lambda: {"theirs": Slow()})
    other = threading.Thread(
        target=capturing.build,
        args=("theirs",),
        kwargs={"num_outputs": 2, "input_shape": (3,), "seed": 0, "options": {}},
    )
    other.start()
    try:
        assert building.wait(PATIENCE_S)
        with pytest.raises(StoppedWhileWaiting):
            capturing.build("mlp", num_outputs=2, input_shape=(3,), seed=0, options={}, check=check)
    finally:
        may_end.set()
        other.join(PATIENCE_S)
    assert asked == [True] * 3


def test_a_job_that_is_to_stop_builds_nothing(built_with):
    def check():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        capturing.build("theirs", num_outputs=2, input_shape=(3,), seed=0, options={}, check=check)
    assert built_with == []


def test_ours_gets_those_that_it_knows():
    options = {"hidden_units": [5], "wide": 6, "drop_path": 0.1, "image_size": 8}
    network = capturing.build("mlp", num_outputs=2, input_shape=(3,), seed=0, options=options)
    assert network(torch.zeros(1, 3)).shape == (1, 2)
    assert [tuple(weight.shape) for weight in network.parameters()] == [(5, 3), (5,), (2, 5), (2,)]
