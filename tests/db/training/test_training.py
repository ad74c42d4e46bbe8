"""A real worker trains, predicts and explains from real tables."""

import gc
from itertools import pairwise

import pytest

from tensile_db.graph import StepGraph
from tests.held_objects import objects_of
from tests.jobs.heard_notices import heard_by
from tests.patience import wait_until

NETWORK = {"architecture": "test_resnet", "features": ["image"], "batch_size": 8, "epochs": 2}


def events(database, job):
    return [
        row["kind"]
        for row in database.execute("SELECT kind FROM tensile.job_events WHERE job_id = %s ORDER BY id", job)
    ]


def count(database, table, job):
    return database.execute(f"SELECT count(*) AS n FROM tensile.{table} WHERE job_id = %s", job)[0]["n"]


def test_a_job_trains_from_a_table_to_a_model(database, start_worker):
    start_worker()
    job = database.submit("points", epochs=30, options={"hidden_units": [16]})
    row = database.wait(job)
    assert (row["state"], row["phase"], row["error_message"]) == ("succeeded", "done", None)
    assert (row["iteration"], row["iterations_total"], row["rows_total"]) == (270, 270, 100)
    assert row["result"]["metrics"]["validation_accuracy"] > 0.9
    assert row["measured_peak_nbytes"] <= row["guaranteed_peak_nbytes"] <= row["budget_nbytes"]
    assert events(database, job)[:3] == ["claimed", "started", "plan_adopted"]
    assert events(database, job)[-1] == "succeeded"
    (model,) = database.execute("SELECT * FROM tensile.models WHERE job_id = %s", job)
    assert (model["name"], model["version"], model["owner"]) == ("m", 1, "anna")
    assert model["classes"] == ["down", "up"]
    assert row["model_version"] == 1
    assert {name for name, _ in database.weights(job)} == {
        "parameter/1.weight",
        "parameter/1.bias",
        "parameter/3.weight",
        "parameter/3.bias",
    }


def test_a_version_that_was_dropped_does_not_come_again(database, start_worker):
    start_worker()
    assert database.wait(database.submit("points"))["model_version"] == 1
    database.execute("DELETE FROM tensile.models")
    assert database.wait(database.submit("points"))["model_version"] == 2
    assert database.wait(database.submit("points", model="other"))["model_version"] == 1


def test_what_may_surprise_in_a_target_is_told(database, start_worker):
    start_worker()
    database.wait_for_worker()
    database.execute(
        "CREATE TABLE prices AS SELECT i::real AS a, 2 * i + 7 AS price FROM generate_series(1, 30) i;"
        "GRANT SELECT ON prices TO anna"
    )
    with database.connect() as connection:
        heard = heard_by(connection)
        connection.execute("SELECT tensile_train('mlp', 'prices', 'price', '{a}')")
        many_classes, no_row = (line for line in heard if "price" in line or "held out" in line)
        assert no_row == "job 1: no row of 30 is held out for validation: each class has but one"
        assert many_classes == (
            'job 1: the whole numbers of column "price" are learned as 30 classes; to predict the number,'
            """ give options => '{"task": "regression"}'"""
        )
        heard.clear()
        options = '{"task": "regression"}'
        connection.execute("SELECT tensile_train('mlp', 'prices', 'price', '{a}', options => %s)", [options])
    assert not any("price" in line or "held out" in line for line in heard)


def test_a_training_whose_last_update_ruins_it_says_so(database, start_worker):
    start_worker()
    row = database.wait(database.submit("points", epochs=1, batch_size=75, learning_rate=1e38))
    assert (row["state"], row["error_sqlstate"]) == ("failed", "22003")
    assert row["error_message"] == "the validation's loss became nan in the last epoch"


def test_a_training_whose_last_update_ruins_it_says_so_where_no_row_is_held_out(database, start_worker):
    start_worker()
    # The update itself is infinite: weights of 1e37 would be finite.
    options = {"weight_decay": 1000.0}
    request = {"epochs": 1, "batch_size": 100, "learning_rate": 1e38, "options": options}
    row = database.wait(database.submit("points", validation=0, **request))
    assert (row["state"], row["error_sqlstate"]) == ("failed", "22003")
    assert row["error_message"].endswith("is not finite after the last update")
    assert not database.execute("SELECT id FROM tensile.models")


def test_numbers_of_any_size_are_learned_from_and_constants_are_told(database, start_worker):
    start_worker()
    database.wait_for_worker()
    database.execute(
        "CREATE TABLE measured AS SELECT (i - 100) * 1e-15::float8 AS tiny, 7::real AS same,"
        " 1700000000000000000 + i * 1000 AS ns, i > 100 AS label FROM generate_series(1, 200) i;"
        "GRANT SELECT ON measured TO anna"
    )
    with database.connect() as connection:
        heard = heard_by(connection)
        for columns in ("{tiny}", "{ns,same}"):
            connection.execute(
                "SELECT tensile_train('mlp', 'measured', features => %s, model => 'm', epochs => 30)",
                [columns],
            )
            ((right,),) = connection.execute(
                "SELECT value FROM tensile_evaluate('m', 'measured') WHERE metric = 'accuracy'"
            )
            assert right > 0.95
        wrong = connection.execute(
            "SELECT count(*) FROM measured WHERE tensile_predict('m', measured)::boolean <> label"
        )
        assert wrong.fetchone()[0] <= 10
    (told,) = (line for line in heard if "column" in line)
    assert told.partition(": ")[2] == (
        'column "same" has one value in all 180 rows that are trained on: it tells nothing'
    )


def test_every_part_of_a_training_is_in_the_catalog(database, start_worker):
    start_worker()
    job = database.submit("points")
    database.wait(job)
    (plan,) = database.execute("SELECT * FROM tensile.plans WHERE job_id = %s AND reason = 'cold_start'", job)
    assert plan["adopted_at_iteration"] == 1
    ops = database.execute("SELECT * FROM tensile.graph_ops WHERE digest = %s", plan["graph_digest"])
    assert len(ops) == len(plan["order"])
    assert count(database, "latency_logs", job) == len(ops)
    assert count(database, "plan_events", job) > 0
    runs = database.execute("SELECT * FROM tensile.plan_runs WHERE job_id = %s ORDER BY ordinal", job)
    assert [run["op_id"] for run in runs if not run["recomputes"]] == plan["order"]
    assert [run["ordinal"] for run in runs] == list(range(len(runs)))
    assert sum(run["recomputes"] for run in runs) == plan["recompute_count"]
    assert all(run["end_ns"] <= after["begin_ns"] for run, after in pairwise(runs))
    assert 0 < runs[-1]["end_ns"] <= plan["time_ns"]
    assert {(run["op_id"], run["target"]) for run in runs} == {(op["op_id"], op["target"]) for op in ops}
    assert count(database, "memory_timeline_points", job) > 0
    peaks = database.execute("SELECT * FROM tensile.memory_peaks WHERE job_id = %s", job)
    assert peaks[0]["iteration"] == 1
    assert all(peak["peak_nbytes"] <= peak["guaranteed_peak_nbytes"] for peak in peaks)
    metrics = database.execute(
        "SELECT epoch, split, metric FROM tensile.training_metrics WHERE job_id = %s ORDER BY id", job
    )
    names = ("loss", "accuracy", "balanced_accuracy", "macro_f1", "precision", "recall", "f1", "roc_auc")
    assert [tuple(row.values()) for row in metrics] == [
        (epoch, split, name)
        for epoch in (1, 2)
        for split, name in (("train", "loss"), *(("validation", name) for name in names))
    ]


def test_training_again_makes_the_next_version_with_the_same_bits(database, start_worker):
    start_worker()
    first, second = database.submit("points"), database.submit("points")
    versions = {database.wait(job)["model_version"] for job in (first, second)}
    assert versions == {1, 2}
    assert database.weights(first) == database.weights(second)


def test_a_model_predicts_a_table_row_by_row(database, start_worker):
    start_worker()
    trained = database.wait(database.submit("points", epochs=30))
    job = database.submit("points", kind="predict", model_id=trained["model_id"], batch_size=64)
    row = database.wait(job)
    assert row["state"] == "succeeded", row["error_message"]
    predicted = database.execute(
        "SELECT p.*, t.label FROM tensile.predictions p JOIN points t ON t.id::text = p.row_key"
        " WHERE p.job_id = %s ORDER BY p.ordinal",
        job,
    )
    assert [p["ordinal"] for p in predicted] == list(range(100))
    assert sum(p["prediction"] == p["label"] for p in predicted) > 90
    assert all(0.5 <= p["probability"] <= 1 for p in predicted)


def test_a_model_is_evaluated_on_rows_with_a_target(database, start_worker):
    start_worker()
    trained = database.wait(database.submit("points", epochs=30))
    job = database.submit("points", kind="evaluate", model_id=trained["model_id"], batch_size=64)
    row = database.wait(job)
    assert row["state"] == "succeeded", row["error_message"]
    assert row["result"]["metrics"]["accuracy"] > 0.9


def test_an_explained_job_tells_its_plan_and_trains_nothing(database, start_worker):
    start_worker()
    row = database.wait(database.submit("pictures", kind="explain", **NETWORK))
    assert row["state"] == "succeeded", row["error_message"]
    said = {line["property"]: line["value"] for line in row["result"]["rows"]}
    assert (said["fits"], said["admitted_now"], said["policy"]) == ("yes", "yes", "auto")
    assert said["declined"] == "yes"
    assert int(said["lower_bound_peak"]) <= int(said["guaranteed_peak"])
    assert int(said["planned_peak"]) <= int(said["vanilla_peak"])
    frontier = [line for line in row["result"]["rows"] if line["property"] == "frontier"]
    assert [line["unit"] for line in frontier] == ["ns"] * 6
    assert frontier[-1]["value"] == said["vanilla_time"]
    # Of 60 pictures 45 are trained on, in whole batches of 8, twice.
    assert said["iterations"] == "10"
    assert int(said["training_time"]) == 10 * int(said["planned_time"])
    assert "100% of the vanilla peak" in frontier[-1]["detail"]
    top = [line for line in row["result"]["rows"] if line["property"] == "top_tensor"]
    assert [line["unit"] for line in top] == ["bytes"] * 5
    assert all("idle for" in line["detail"] for line in top)
    assert database.execute("SELECT * FROM tensile.models") == []


def test_a_job_that_fits_nowhere_is_refused_with_the_least_memory_that_would_do(database, start_worker):
    start_worker(memory_nbytes=50_000)
    row = database.wait(database.submit("pictures", **NETWORK))
    assert (row["state"], row["error_sqlstate"]) == ("failed", "53200")
    assert "needs at least" in row["error_message"]
    assert row["error_hint"]


def test_explaining_a_job_that_fits_nowhere_says_what_would_do_and_at_what_cost(database, start_worker):
    start_worker(memory_nbytes=50_000)
    row = database.wait(database.submit("pictures", kind="explain", **NETWORK | {"batch_size": 10**6}))
    assert row["state"] == "succeeded", row["error_message"]
    rows = row["result"]["rows"]
    said = {line["property"]: line["value"] for line in rows}
    assert (said["fits"], said["policy"], said["memory_limit"]) == ("no", "auto", "50000")
    assert 50_000 < int(said["needed_memory"]) <= int(said["vanilla_peak"])
    # As in training, the rows there are: a quarter is held out.
    (trained,) = database.execute("SELECT count(*) - round(0.25 * count(*)) AS n FROM pictures")
    assert int(said["batch_size"]) == trained["n"]
    frontier = [int(line["value"]) for line in rows if line["property"] == "frontier"]
    assert len(frontier) == 6
    assert frontier[-1] == int(said["vanilla_time"])


def test_a_diverging_job_fails_with_a_hint_and_leaves_its_neighbour_alone(database, start_worker):
    alone = database.submit("pictures", **NETWORK)
    start_worker()
    database.wait(alone)
    neighbour = database.submit("pictures", **NETWORK)
    diverging = database.submit("points", learning_rate=1e30, epochs=50)
    row = database.wait(diverging)
    assert (row["state"], row["error_sqlstate"]) == ("failed", "22003")
    assert "learning_rate" in row["error_hint"]
    assert database.wait(neighbour)["state"] == "succeeded"
    assert database.weights(neighbour) == database.weights(alone)


def test_what_is_wrong_with_one_job_ends_that_job_only(database, start_worker):
    start_worker()
    broken = database.submit("points", policy="no such policy")
    sound = database.submit("points")
    row = database.wait(broken)
    assert (row["state"], row["error_sqlstate"]) == ("failed", "22023")
    assert "no such policy" in row["error_message"]
    assert database.wait(sound)["state"] == "succeeded"


def test_a_cancelled_job_stops_and_its_memory_goes_to_the_others(database, start_worker):
    start_worker()
    kept = database.submit("points", epochs=10**6)
    cancelled = database.submit("points", epochs=10**6)
    database.wait_until(cancelled, lambda row: (row["iteration"] or 0) > 3)
    database.ask(cancelled, cancel_requested=True)
    row = database.wait(cancelled)
    assert (row["state"], row["error_sqlstate"]) == ("cancelled", "57014")
    database.ask(kept, cancel_requested=True)
    database.wait(kept)
    assert database.execute("SELECT * FROM tensile.checkpoints WHERE job_id = %s", cancelled) == []


@pytest.mark.parametrize("memory_share", [1.2, 2.2])
@pytest.mark.thorough
def test_four_jobs_stay_within_the_device_and_get_the_bits_of_one_alone(database, start_worker, memory_share):
    first = start_worker()
    alone = database.submit("pictures", **NETWORK, model="alone")
    vanilla_nbytes = database.wait(alone)["vanilla_peak_nbytes"]
    first.stop()
    memory_nbytes = int(memory_share * vanilla_nbytes)
    jobs = [database.submit("pictures", **NETWORK, model=f"m{i}") for i in range(4)]
    start_worker(memory_nbytes=memory_nbytes)
    rows = [database.wait(job) for job in jobs]
    assert [(row["state"], row["error_message"]) for row in rows] == [("succeeded", None)] * 4
    assert all(database.weights(job) == database.weights(alone) for job in jobs)
    (peak,) = database.execute(
        "SELECT max(device_peak_nbytes) AS nbytes FROM tensile.memory_peaks WHERE job_id <> %s", alone
    )
    assert peak["nbytes"] <= memory_nbytes


def graphs_alive():
    gc.collect()
    return len(objects_of(StepGraph))


@pytest.mark.thorough
def test_the_graphs_of_jobs_that_have_ended_are_not_kept(database, start_worker):
    start_worker()
    # Of other tests.
    before = graphs_alive()
    for _ in range(5):
        row = database.wait(database.submit("points"))
        assert row["state"] == "succeeded", row["error_message"]
    # The planner's front, and the one for splits, may still hold what they were asked last.
    wait_until(lambda: graphs_alive() <= before + 2)
