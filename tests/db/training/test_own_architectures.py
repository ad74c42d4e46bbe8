"""Networks of packages in a real worker: trained and used, refused, and missing."""

import sys

import pytest
from torch import nn

from tensile_db.capture.networks import architectures


class Sequence(nn.Module):
    """Reads a row's features one after another."""

    def __init__(self, outputs):
        super().__init__()
        self.lstm = nn.LSTM(1, 8, batch_first=True)
        self.last = nn.Linear(8, outputs)

    def forward(self, x):
        return self.last(self.lstm(x[:, :, None])[0][:, -1])


class Leaving(nn.Linear):
    """Ends the process, or would."""

    def forward(self, x):
        sys.exit(3)


NETWORKS = {
    "sequence": lambda outputs, features, size: Sequence(outputs),
    "norm_first": lambda outputs, features, size: nn.Sequential(
        nn.BatchNorm1d(features), nn.Linear(features, outputs)
    ),
    "leaving": lambda outputs, features, size: Leaving(features, outputs),
    "five": lambda outputs, features, size: nn.Linear(features, 5),
}


class Point:
    """What a package offers."""

    def __init__(self, name):
        self.name = name
        self.value = f"theirs:{name}"

    def load(self):
        return NETWORKS[self.name]


@pytest.fixture
def offered(monkeypatch):
    points = {name: Point(name) for name in NETWORKS}
    monkeypatch.setattr(architectures, "_offered", lambda: points)
    return points


@pytest.mark.parametrize("name", ["sequence", "norm_first"])
def test_a_network_of_a_package_trains_and_predicts_until_the_package_is_gone(
    database, start_worker, offered, name
):
    start_worker()
    trained = database.wait(database.submit("points", architecture=name))
    assert (trained["state"], trained["error_message"]) == ("succeeded", None)
    using = {"architecture": None, "model_id": trained["model_id"], "target": None}
    used = database.wait(database.submit("points", kind="predict", **using))
    assert (used["state"], used["error_message"]) == ("succeeded", None)
    del offered[name]
    refused = database.wait(database.submit("points", kind="predict", **using))
    assert (refused["state"], refused["error_sqlstate"]) == ("failed", "58P01")
    assert f'"{name}" (theirs:{name}) is not installed' in refused["error_message"]


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leaving", "SystemExit: 3 (tests/db/training/test_own_architectures.py:"),
        ("five", 'architecture "five" returns 5 outputs a row, 2 were asked for'),
    ],
)
def test_a_network_that_cannot_be_trained_fails_its_job_at_once(database, start_worker, name, message):
    start_worker()
    row = database.wait(database.submit("points", architecture=name))
    assert (row["state"], row["error_sqlstate"], row["attempt"]) == ("failed", "22023", 1)
    assert message in row["error_message"]
