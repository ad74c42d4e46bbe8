"""Searches on a real worker: trials that are jobs, the best one's model, early stops, crashes and rights."""

import os
import signal

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tensile_db.data import features
from tensile_db.worker.jobs import source_rows
from tests.examples import one_in
from tests.jobs.asked_searches import Searches, call
from tests.jobs.heard_notices import heard_by
from tests.patience import wait_until

#: Wide enough apart that the order of the results is beyond doubt.
SPACE = {"learning_rate": {"choices": [1e-6, 0.1]}, "hidden_units": {"choices": [[4], [16]]}}


@pytest.fixture
def searches(database):
    return Searches(database)


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


def start_and_wait(start_worker, database):
    """Start a worker; return once a statement that waits for one is let in."""
    start_worker()
    database.wait_for_worker()


@pytest.mark.parametrize("metric", one_in(2, ["balanced_accuracy", "accuracy"]))
def test_waiting_returns_the_best_trial_and_tells_how_far_it_is(database, searches, start_worker, metric):
    start_and_wait(start_worker, database)
    with searches.database.connect() as connection:
        notices = heard_by(connection)
        connection.row_factory = psycopg.rows.dict_row
        found = connection.execute(
            *call(
                "tensile_search",
                {
                    "architecture": "mlp",
                    "source": "points",
                    "space": Jsonb({"learning_rate": {"choices": [1e-6, 0.1]}}),
                    "method": "grid",
                    "metric": metric,
                    "epochs": 6,
                    "batch_size": 8,
                },
            )
        ).fetchall()
        (waited,) = connection.execute("SELECT * FROM tensile_wait(%s)", [found[0]["search_id"]]).fetchall()
    (row,) = found
    best = searches.trials(row["search_id"])[1]
    assert (row["trial"], row["job_id"], row["value"]) == (1, best["job_id"], best["value"])
    assert (row["params"], row["metric"], row["model"]) == ({"learning_rate": 0.1}, metric, "mlp")
    assert (row["version"], row["begun"], row["pruned"], row["failed"]) == (1, 2, 0, 0)
    assert row["seconds"] > 0
    assert (waited["state"], waited["version"]) == ("succeeded", 1)
    assert waited["metrics"][f"validation_{metric}"] == row["value"]
    (seen,) = database.execute("SELECT best_trial, best_value FROM tensile.searches")
    assert (seen["best_trial"], seen["best_value"]) == (1, row["value"])
    assert notices
    assert all(str(row["search_id"]) in notice for notice in notices)


def test_a_trial_with_a_patience_that_diverges_counts_by_its_best_epoch(database, searches, start_worker):
    start_worker()
    space = {"learning_rate": {"choices": [1e-3, 1.0]}}
    # With the larger rate each update makes weights larger.
    options = {"patience": 50, "weight_decay": 2.5}
    search = searches.submit(space, method="grid", epochs=40, batch_size=8, options=Jsonb(options))
    assert database.wait(search)["state"] == "succeeded"
    trials = searches.trials(search)
    assert [(trial["state"], trial["error"]) for trial in trials] == [("succeeded", None)] * 2
    seen = database.execute(
        "SELECT value FROM tensile.training_metrics WHERE job_id = %s AND split = 'validation'"
        " AND metric = 'loss' ORDER BY epoch",
        trials[1]["job_id"],
    )
    losses = [row["value"] for row in seen]
    assert 0 < len(losses) < 40
    assert trials[1]["value"] == min(losses)


def test_losers_are_stopped_at_the_end_of_an_epoch_and_say_why(database, searches, start_worker):
    start_worker()
    space = {"learning_rate": {"choices": [1e-6, 0.1]}}
    asked = {"method": "halving", "trials": 6, "max_parallel": 1, "epochs": 9, "batch_size": 8, "seed": 3}
    search = searches.submit(space, **asked)
    assert database.wait(search)["state"] == "succeeded"
    trials = searches.trials(search)
    pruned = [trial for trial in trials if trial["state"] == "pruned"]
    assert pruned
    for trial in pruned:
        # Rungs.
        assert trial["epochs_done"] in (1, 3)
        assert trial["pruned_why"].startswith(
            f"loss {trial['value']:.4g} after epoch {trial['epochs_done']} "
        )
        assert trial["error"] is None
        job = database.job(trial["job_id"])
        assert (job["state"], job["error_sqlstate"]) == ("cancelled", "57014")
        assert job["error_message"] == f"the job was pruned: {trial['pruned_why']}"
        metrics = "SELECT max(epoch) AS epoch FROM tensile.training_metrics WHERE job_id = %s"
        assert database.execute(metrics, trial["job_id"]) == [{"epoch": trial["epochs_done"]}]
    row = searches.row(search)
    assert (row["pruned"], row["succeeded"]) == (len(pruned), 6 - len(pruned))
    assert row["best_params"] == {"learning_rate": 0.1}
    assert [model["job_id"] for model in searches.models()] == [trials[row["best_trial"]]["job_id"]]
    # Equal seeds, one at a time: equal trials and equal ends.
    again = searches.submit(space, **asked)
    assert database.wait(again)["state"] == "succeeded"
    same = ("trial", "params", "state", "value", "epochs_done")
    assert [[trial[name] for name in same] for trial in searches.trials(again)] == [
        [trial[name] for name in same] for trial in trials
    ]


def test_the_rows_are_read_and_decoded_once_for_all_trials(
    database, searches, start_worker, monkeypatch, tmp_path
):
    read, written = [], []
    for module, name, calls in ((source_rows, "read", read), (features, "_written", written)):
        monkeypatch.setattr(module, name, counted(getattr(module, name), calls))
    start_worker()
    space = {"learning_rate": {"low": 0.01, "high": 0.1}}
    search = searches.submit(space, trials=4, max_parallel=4, epochs=2, batch_size=8)
    assert database.wait(search)["state"] == "succeeded"
    assert searches.row(search)["succeeded"] == 4
    assert (len(read), len(written)) == (1, 1)
    wait_until(lambda: folders(tmp_path) == [])


@pytest.mark.thorough
def test_images_are_decoded_once_for_each_size(database, searches, start_worker, monkeypatch):
    read, written = [], []
    for module, name, calls in ((source_rows, "read", read), (features, "_written", written)):
        monkeypatch.setattr(module, name, counted(getattr(module, name), calls))
    # It tells which architectures it knows.
    start_and_wait(start_worker, database)
    space = {"image_size": {"choices": [8, 16]}, "optimizer": {"choices": ["sgd", "adam"]}}
    search = searches.submit(
        space, architecture="test_resnet", source="pictures", method="grid", epochs=1, batch_size=8
    )
    assert database.wait(search)["state"] == "succeeded"
    assert searches.row(search)["succeeded"] == 4
    assert (len(read), len(written)) == (1, 2)


def counted(function, calls):
    def call(*arguments, **named):
        calls.append(arguments)
        return function(*arguments, **named)

    return call


def folders(cache):
    return [path.name for path in cache.glob("database-*/job-*")]


def test_after_kill_9_a_search_goes_on_from_its_trials(database, searches, start_forked, tmp_path):
    worker = start_forked(memory_nbytes=64 * 2**20)
    space = {"learning_rate": {"choices": [0.1, 0.05, 0.02, 0.01]}}
    search = searches.submit(space, method="grid", epochs=20, batch_size=8, max_parallel=2)
    wait_until(lambda: searches.row(search)["succeeded"] >= 1 and searches.row(search)["unfinished"])
    before = searches.trials(search)
    assert folders(tmp_path) == [f"job-{search}-{int(database.job(search)['created_at'].timestamp() * 1e6)}"]
    os.kill(worker.worker_pid, signal.SIGKILL)
    row = database.wait(search)
    assert (row["state"], row["attempt"]) == ("succeeded", 2)
    trials = searches.trials(search)
    assert [trial["params"]["learning_rate"] for trial in trials] == space["learning_rate"]["choices"]
    assert {trial["state"] for trial in trials} == {"succeeded"}
    for early in before:
        now = trials[early["trial"]]
        assert now["job_id"] == early["job_id"]
        assert early["state"] != "succeeded" or now["finished_at"] == early["finished_at"]
    best = min(trials, key=lambda trial: trial["value"])
    assert [model["job_id"] for model in searches.models()] == [best["job_id"]]


ENDLESS = {"space": {"learning_rate": {"low": 0.01, "high": 0.1}}, "epochs": 10**6, "batch_size": 8}


def test_cancelling_a_search_cancels_its_trials(database, searches, start_worker, tmp_path):
    start_worker()
    search = searches.submit(**ENDLESS, trials=9, max_parallel=2)
    wait_until(lambda: [trial["state"] for trial in searches.trials(search)] == ["running"] * 2)
    with searches.database.connect() as connection:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="is a search") as refusal:
            connection.execute("SELECT tensile_pause(%s)", [search])
        assert "tensile.trials has their jobs" in refusal.value.diag.message_hint
        connection.execute("SELECT tensile_cancel(%s)", [search])
    row = database.wait(search)
    assert (row["state"], row["error_sqlstate"]) == ("cancelled", "57014")
    assert [trial["state"] for trial in searches.trials(search)] == ["cancelled"] * 2
    wait_until(lambda: folders(tmp_path) == [])
    assert searches.models() == []


def test_a_search_that_is_cancelled_keeps_the_best_model_so_far(database, searches, start_worker):
    start_worker()
    space = {"epochs": {"choices": [1, 10**6]}}
    search = searches.submit(space, method="grid", max_parallel=1, batch_size=8, model="m")
    wait_until(lambda: [trial["state"] for trial in searches.trials(search)] == ["succeeded", "running"])
    with searches.database.connect() as connection:
        connection.execute("SELECT tensile_cancel(%s)", [search])
    assert database.wait(search)["state"] == "cancelled"
    assert searches.models() == [{"name": "m", "version": 1, "job_id": searches.trials(search)[0]["job_id"]}]


def test_a_trial_that_its_owner_cancels_costs_only_itself(database, searches, start_worker):
    start_worker()
    space = {"epochs": {"choices": [10**6, 1]}}
    search = searches.submit(space, method="grid", max_parallel=1, batch_size=8)
    wait_until(lambda: [trial["state"] for trial in searches.trials(search)] == ["running"])
    with searches.database.connect() as connection:
        connection.execute("SELECT tensile_cancel(%s)", [searches.trials(search)[0]["job_id"]])
    assert database.wait(search)["state"] == "succeeded"
    row = searches.row(search)
    assert (row["failed"], row["succeeded"], row["best_trial"]) == (1, 1, 1)


def test_a_search_that_is_waited_for_ends_with_its_statement(database, searches, start_worker):
    start_and_wait(start_worker, database)
    arguments = ENDLESS | {"space": Jsonb(ENDLESS["space"]), "architecture": "mlp", "source": "points"}
    with searches.database.connect() as connection:
        connection.execute("SET statement_timeout = '2s'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(*call("tensile_search", arguments))
    wait_until(lambda: all(row["finished_at"] for row in database.execute("SELECT * FROM tensile.jobs")))
    assert {row["state"] for row in database.execute("SELECT state FROM tensile.jobs")} == {"cancelled"}


def test_a_search_that_no_worker_holds_takes_its_trials_along(database, searches, start_worker):
    worker = start_worker()
    search = searches.submit(**ENDLESS, max_parallel=1)
    wait_until(lambda: [trial["state"] for trial in searches.trials(search)] == ["running"])
    worker.stop()
    for job in (search, searches.trials(search)[0]["job_id"]):
        database.wait_until(job, lambda row: row["state"] == "queued")
    with searches.database.connect() as connection:
        connection.execute("SELECT tensile_cancel(%s)", [search])
    assert {row["state"] for row in database.execute("SELECT state FROM tensile.jobs")} == {"cancelled"}


@pytest.mark.thorough
def test_many_searches_leave_the_worker_places_for_their_trials(database, searches, start_worker):
    start_worker(max_jobs=1)
    space = {"learning_rate": {"choices": [0.1, 0.01]}}
    many = [searches.submit(space, method="grid", epochs=1, batch_size=8) for _ in range(4)]
    for search in many:
        assert database.wait(search)["state"] == "succeeded"
        assert searches.row(search)["succeeded"] == 2
    assert most_at_once(database) == 1


def most_at_once(database):
    """The most trainings that were claimed and had not ended."""
    (row,) = database.execute(
        "SELECT max(others) AS most FROM (SELECT count(*) AS others FROM tensile.jobs a JOIN tensile.jobs b"
        " ON b.claimed_at <= a.claimed_at AND b.finished_at > a.claimed_at"
        " WHERE a.kind = 'train' AND b.kind = 'train' GROUP BY a.id) counted"
    )
    return row["most"]


def test_a_quota_holds_for_trials_and_the_search_waits_for_room(database, searches, start_worker):
    database.execute("SELECT tensile_set_quota('anna', max_concurrent_jobs => 1)")
    start_worker()
    space = {"learning_rate": {"choices": [0.1, 0.05, 0.01]}}
    search = searches.submit(space, method="grid", epochs=30, batch_size=8, max_parallel=3)
    wait_until(lambda: searches.row(search)["wait_reason"])
    assert searches.row(search)["wait_reason"] == 'role "anna" has 1 unfinished jobs, and may have at most 1'
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        searches.submit(space)
    assert database.wait(search)["state"] == "succeeded"
    assert (searches.row(search)["succeeded"], most_at_once(database)) == (3, 1)


def test_rows_that_no_trial_can_use_end_the_search_after_the_first(database, searches, start_worker):
    start_worker()
    database.execute("UPDATE points SET a = NULL WHERE id = 7")
    search = searches.submit({"learning_rate": {"low": 0.01, "high": 0.1}}, trials=50, max_parallel=1)
    row = database.wait(search)
    assert (row["state"], row["error_sqlstate"]) == ("failed", "22004")
    (trial,) = searches.trials(search)
    assert row["error_message"].startswith(
        f"the trials of the search cannot succeed; trial 0, job {trial['job_id']}: "
    )
    assert "id=7" in row["error_message"]


def test_hostile_names_are_only_names(database, searches, start_worker):
    name = """x"'; DROP TABLE points; -- {0} %s \\ $1"""
    with psycopg.connect(database.admin) as connection:
        quoted = psycopg.sql.Identifier(name)
        connection.execute(psycopg.sql.SQL("ALTER TABLE points RENAME a TO {}").format(quoted))
        connection.execute(psycopg.sql.SQL("ALTER TABLE points RENAME TO {}").format(quoted))
    start_worker()
    search = searches.submit(
        {"learning_rate": {"choices": [0.1, 0.01]}},
        source='"' + name.replace('"', '""') + '"',
        features=[name, "b"],
        model=name,
        method="grid",
        epochs=1,
        batch_size=8,
    )
    assert database.wait(search)["state"] == "succeeded"
    (model,) = searches.models()
    assert model["name"] == name
