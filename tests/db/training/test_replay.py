"""A real worker on a device that puts everything off and replays: the same models, and rows that say so."""

import psycopg
import pytest

from tests.examples import one_in
from tests.patience import wait_until

TRAINING = {
    "epochs": 12,
    "options": {"hidden_units": [16, 8], "dropout": 0.3, "checkpoint_seconds": 1e6},
}


def events_of(database, job):
    rows = database.execute("SELECT kind, detail FROM tensile.job_events WHERE job_id = %s ORDER BY id", job)
    return [(row["kind"], row["detail"]) for row in rows if "replayed" in row["kind"]]


@pytest.mark.parametrize("optimizer", one_in(2, ["adam", "momentum"]))
def test_a_training_that_is_replayed_makes_the_model_of_one_that_is_not(database, late_workers, optimizer):
    weights = []
    for replay in (False, True):
        worker = late_workers.start(replay=replay)
        job = database.submit("points", optimizer=optimizer, **TRAINING)
        row = database.wait(job)
        assert row["state"] == "succeeded", row
        weights.append(database.weights(job))
        told = events_of(database, job)
        worker.stop()
        if replay:
            assert {kind for kind, _ in told} == {"replayed"}
            assert all(detail["held_nbytes"] > 0 and detail["plan_version"] > 0 for _, detail in told)
        else:
            assert told == []
    assert weights[0] == weights[1]


@pytest.mark.thorough
def test_a_table_of_few_batches_and_rows_one_by_one_are_never_taken_down(database, late_workers):
    worker = late_workers.start(replay=True)
    trained = database.wait(database.submit("points", **TRAINING))
    use = {"model_id": trained["model_id"], "batch_size": 8}
    for kind in ("predict", "evaluate"):
        assert database.wait(database.submit("points", kind=kind, **use))["state"] == "succeeded"
    with psycopg.connect(psycopg.conninfo.make_conninfo(database.admin, user="anna")) as anna:
        rows = anna.execute("SELECT tensile_predict('m', ARRAY[a, b]) FROM points").fetchall()
    assert len(rows) == 100
    jobs = {row["kind"]: row["id"] for row in database.execute("SELECT id, kind FROM tensile.jobs")}
    assert {kind: events_of(database, job) != [] for kind, job in jobs.items()} == {
        "train": True,
        "predict": False,
        "evaluate": False,
        "serve": False,
    }
    worker.stop()


@pytest.mark.parametrize("memory_nbytes", one_in(2, [2**30, 80 * 2**20]))
def test_a_table_of_many_batches_is_predicted_and_evaluated_by_replays(database, late_workers, memory_nbytes):
    found = []
    for replay in (False, True):
        worker = late_workers.start(replay=replay, memory_nbytes=memory_nbytes)
        trained = database.wait(database.submit("points", **TRAINING))
        use = {"model_id": trained["model_id"], "batch_size": 1}
        jobs, rows = [], []
        # One by one: there may be room for one recording.
        for kind in ("predict", "evaluate"):
            jobs.append(database.submit("points", kind=kind, **use))
            rows.append(database.wait(jobs[-1]))
            assert rows[-1]["state"] == "succeeded", rows[-1]
            assert [kind for kind, _ in events_of(database, jobs[-1])] == ["replayed"] * replay
        predicted = database.execute(
            "SELECT ordinal, prediction, probability FROM tensile.predictions WHERE job_id = %s"
            " ORDER BY ordinal",
            jobs[0],
        )
        assert len(predicted) == 100
        found.append((predicted, rows[1]["result"]["metrics"]))
        database.let_go(worker)
    assert found[0] == found[1]


@pytest.mark.thorough
def test_a_replayed_training_is_paused_goes_on_and_makes_the_same_model(database, late_workers):
    worker = late_workers.start(replay=True)
    twice_paused = database.submit("points", **TRAINING | {"epochs": 10**6})

    def pause_beyond(iteration):
        database.wait_until(twice_paused, lambda row: (row["iteration"] or 0) > iteration)
        database.ask(twice_paused, pause_requested=True)
        row = database.wait_until(twice_paused, lambda row: row["state"] == "paused")
        assert row["iteration"] > iteration
        assert late_workers.runtime.open_tapes == []
        return row

    first = pause_beyond(60)
    database.ask(twice_paused, pause_requested=False)
    second = pause_beyond(first["iteration"] + 60)
    epochs = second["epoch"] + 10
    database.ask(twice_paused, pause_requested=False, epochs=epochs)
    at_once = database.submit("points", **TRAINING | {"epochs": epochs})
    assert {database.wait(job)["state"] for job in (twice_paused, at_once)} == {"succeeded"}
    assert database.weights(twice_paused) == database.weights(at_once)
    worker.stop()


def test_trainings_that_take_turns_give_their_memory_to_each_other_and_keep_their_bits(
    database, late_workers
):
    alone = late_workers.start(replay=False)
    jobs = [database.submit("points", **TRAINING | {"seed": seed}) for seed in (1, 2)]
    assert {database.wait(job)["state"] for job in jobs} == {"succeeded"}
    want = [database.weights(job) for job in jobs]
    database.let_go(alone)
    together = late_workers.start(replay=True, sharing="fair")
    jobs = [database.submit("points", **TRAINING | {"seed": seed}) for seed in (1, 2)]
    rows = [database.wait(job) for job in jobs]
    assert {row["state"] for row in rows} == {"succeeded"}
    # Whoever was first may have been alone for a while, and so had more.
    peaks = database.execute(
        "SELECT measured_peak_nbytes <= budget_nbytes AS is_within FROM tensile.plan_summary"
        " WHERE job_id = ANY(%s) AND measured_peak_nbytes IS NOT NULL",
        jobs,
    )
    assert len(peaks) >= len(jobs)
    assert all(peak["is_within"] for peak in peaks)
    assert [database.weights(job) for job in jobs] == want
    together.stop()


def test_what_was_taken_down_is_kept_while_epochs_are_validated(database, late_workers):
    worker = late_workers.start(replay=True, memory_nbytes=2**30)
    # Four iterations an epoch.
    endless = TRAINING | {"epochs": 10**6, "validation": 0.4, "batch_size": 16}
    job = database.submit("points", **endless)
    runtime = late_workers.runtime
    wait_until(lambda: runtime.open_tapes)
    kept = list(runtime.open_tapes)
    begun = database.wait_until(job, lambda row: row["epoch"])["epoch"]
    database.wait_until(job, lambda row: row["epoch"] > begun + 10)
    assert runtime.open_tapes == kept
    worker.stop()


@pytest.mark.thorough
def test_trainings_that_take_turns_are_each_replayed_where_there_is_room_for_both(database, late_workers):
    endless = TRAINING | {"epochs": 10**6, "validation": 0.0}
    worker = late_workers.start(replay=True, sharing="fair", memory_nbytes=2**30)
    jobs = [database.submit("points", **endless | {"seed": seed}) for seed in (1, 2)]
    runtime = late_workers.runtime
    wait_until(lambda: len(runtime.open_tapes) == 2)
    kept = list(runtime.open_tapes)
    # What a row tells comes a little later.
    begun = [database.job(job)["iteration"] or 0 for job in jobs]
    for job, first in zip(jobs, begun, strict=True):
        database.wait_until(job, lambda row, least=first + 150: (row["iteration"] or 0) > least)
    # Each has had many turns since, sampled ones among them.
    assert runtime.open_tapes == kept
    for job in jobs:
        database.ask(job, pause_requested=True)
    rows = [database.wait_until(job, lambda row: row["state"] == "paused") for job in jobs]
    epochs = max(row["epoch"] for row in rows) + 5
    for job in jobs:
        database.ask(job, pause_requested=False, epochs=epochs)
    assert {database.wait(job)["state"] for job in jobs} == {"succeeded"}
    alone = [database.submit("points", **endless | {"seed": seed, "epochs": epochs}) for seed in (1, 2)]
    assert {database.wait(job)["state"] for job in alone} == {"succeeded"}
    assert [database.weights(job) for job in jobs] == [database.weights(job) for job in alone]
    worker.stop()
