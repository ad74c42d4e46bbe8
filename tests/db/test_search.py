"""Searches on a real worker: trials that are jobs, the best one's model, early stops, crashes and rights."""

import psycopg
import pytest
from psycopg.types.json import Jsonb

#: Wide enough apart that the order of the results is beyond doubt.
SPACE = {"learning_rate": {"choices": [1e-6, 0.1]}, "hidden_units": {"choices": [[4], [16]]}}


@pytest.fixture
def searches(database):
    return Searches(database)


class Searches:
    """What the user `anna` asks for, and what comes of it."""

    def __init__(self, database):
        self.database = database

    def submit(self, space, **arguments):
        """Call tensile_submit_search as anna; return the search."""
        arguments = {"architecture": "mlp", "source": "points", "space": Jsonb(space)} | arguments
        with self.connect() as connection:
            return connection.execute(*call("tensile_submit_search", arguments)).fetchone()[0]

    def connect(self):
        return psycopg.connect(
            psycopg.conninfo.make_conninfo(self.database.admin, user="anna"), autocommit=True
        )

    def trials(self, search):
        return self.database.execute(
            "SELECT * FROM tensile.trials WHERE search_id = %s ORDER BY trial", search
        )

    def row(self, search):
        return self.database.execute("SELECT * FROM tensile.searches WHERE search_id = %s", search)[0]

    def models(self):
        return self.database.execute("SELECT name, version, job_id FROM tensile.models ORDER BY id")


def call(function, arguments):
    named = ", ".join(f"{name} => %s" for name in arguments)
    return f"SELECT * FROM {function}({named})", list(arguments.values())


def test_a_grid_tries_every_point_and_keeps_the_best_model_alone(database, searches, start_worker):
    start_worker()
    search = searches.submit(SPACE, method="grid", epochs=4, batch_size=8, model="m", validation=0.25)
    ended = database.wait(search)
    assert (ended["state"], ended["error_message"]) == ("succeeded", None)
    trials = searches.trials(search)
    assert [trial["params"] for trial in trials] == [
        {"hidden_units": [4], "learning_rate": 1e-6},
        {"hidden_units": [4], "learning_rate": 0.1},
        {"hidden_units": [16], "learning_rate": 1e-6},
        {"hidden_units": [16], "learning_rate": 0.1},
    ]
    assert {(trial["state"], trial["epochs_done"]) for trial in trials} == {("succeeded", 4)}
    best = min(trials, key=lambda trial: trial["value"])
    assert best["params"]["learning_rate"] == 0.1
    row = searches.row(search)
    assert (row["best_trial"], row["best_value"]) == (best["trial"], best["value"])
    assert [row[name] for name in ("begun", "succeeded", "unfinished", "pruned", "failed")] == [4, 4, 0, 0, 0]
    assert searches.models() == [{"name": "m", "version": 1, "job_id": best["job_id"]}]
    assert (row["version"], ended["model_version"]) == (1, 1)
    assert [trial["version"] for trial in trials].count(None) == 3
