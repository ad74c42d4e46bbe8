"""A real worker makes what a frozen backbone makes of images once: the same bits, fewer bytes."""

import os
import signal
from dataclasses import replace

import pytest
from psycopg.types.json import Jsonb

from tensile_db.worker.jobs import backbone_features, extracting, planned_step
from tensile_db.worker.jobs.backbone_features import DiskFull, FeatureFile
from tensile_db.worker.jobs.planned_step import PlannedStep
from tests.examples import one_in
from tests.jobs.asked_searches import Searches
from tests.jobs.pretrained_jobs import REQUEST as OF_ALL
from tests.jobs.pretrained_jobs import SIDE, add_photos, bring, trained

#: One more than batches of eight hold.
ROWS = 25
REQUEST = {"epochs": 3, "optimizer": "adam", "learning_rate": 0.01}


@pytest.fixture
def photos(database, tmp_path):
    """Return what a training over images with a frozen backbone asks for."""
    add_photos(database, rows=ROWS)
    _, weights = bring(database, tmp_path, "test_resnet", "--image-size", SIDE)
    return {"pretrained_id": weights, **REQUEST, "options": {"freeze_backbone": True}}


@pytest.fixture
def runs(monkeypatch):
    """The iterations that are run from now on, by job: (the step's outputs, the iteration)."""
    seen = {}
    usual = PlannedStep.run

    def run(step, batch, *, iteration, update=1):
        seen.setdefault(step._job.row.id, []).append((*step.step.outputs, iteration))
        return usual(step, batch, iteration=iteration, update=update)

    monkeypatch.setattr(PlannedStep, "run", run)
    return seen


def with_options(request, **options):
    return request | {"options": request["options"] | options}


def events(database, job, kind):
    rows = database.execute(
        "SELECT detail FROM tensile.job_events WHERE job_id = %s AND kind = %s", job["id"], kind
    )
    return [row["detail"] for row in rows]


def metrics(database, job):
    rows = database.execute(
        "SELECT epoch, split, metric, value FROM tensile.training_metrics WHERE job_id = %s", job["id"]
    )
    return {(row["epoch"], row["split"], row["metric"]): row["value"] for row in rows}


def test_epochs_go_over_features_that_were_made_once(database, start_worker, photos, runs):
    start_worker()
    job = trained(database, **photos)
    # The first batch twice; then the whole batches that are not held out, in each epoch.
    once = "backbone_features/0"
    assert runs[job["id"]] == [
        *((once, number) for number in (1, 1, 2, 3, 4)),
        *(("loss", number) for number in range(1, 7)),
    ]
    (kept,) = events(database, job, "features_kept")
    assert kept == {"bytes": ROWS * 96 * 4}
    plans = database.execute(
        "SELECT version, graph_digest FROM tensile.plans WHERE job_id = %s ORDER BY version", job["id"]
    )
    assert [plan["version"] for plan in plans] == list(range(1, len(plans) + 1))
    assert len({plan["graph_digest"] for plan in plans}) == 2


@pytest.mark.parametrize(
    ("source", "request_", "options"),
    [
        pytest.param("photos", {}, {}, marks=pytest.mark.thorough),
        ("photos", {"optimizer": "momentum"}, {"precision": "bfloat16", "dropout": 0.5}),
        pytest.param(
            "photos",
            {"epochs": 20},
            {"patience": 2, "max_gradient_norm": 0.1},
            marks=pytest.mark.thorough,
        ),
        ("photos", {}, {"class_weights": "balanced", "precision": "float16"}),
        # All rows to train on are the batch.
        pytest.param("photos", {"batch_size": 23}, {"dropout": 0.2}, marks=pytest.mark.thorough),
        # Numbers that come as float32.
        ("pictures", {}, {}),
    ],
)
def test_weights_and_metrics_are_those_of_the_whole_step(
    database, start_worker, photos, monkeypatch, source, request_, options
):
    request = with_options(photos | request_, **options)
    start_worker()
    kept = trained(database, source, **request)
    assert events(database, kept, "features_kept")
    monkeypatch.setattr(backbone_features, "share_of_disk_nbytes", lambda folder: 0)
    whole = trained(database, source, **request)
    (said,) = events(database, whole, "features_not_kept")
    assert said["reason"].startswith("the disk has no room for ")
    assert metrics(database, kept) == metrics(database, whole)
    assert kept["result"]["epoch"] == whole["result"]["epoch"]
    assert database.weights(kept["id"]) == database.weights(whole["id"])
    assert kept["measured_peak_nbytes"] < whole["measured_peak_nbytes"]


def test_the_head_alone_takes_little_memory(database, start_worker, photos):
    start_worker()
    job = trained(database, **photos)
    peaks = database.execute(
        "SELECT plan_version, max(peak_nbytes) AS nbytes FROM tensile.memory_peaks WHERE job_id = %s"
        " GROUP BY 1 ORDER BY 1",
        job["id"],
    )
    first, *_, last = (row["nbytes"] for row in peaks)
    assert last < first / 10
    # What is said of the job is of all that it did.
    assert job["measured_peak_nbytes"] == first
    assert job["vanilla_peak_nbytes"] >= first


@pytest.mark.parametrize(
    ("request_", "options"), [({}, {"augmentation": {"horizontal_flip": True}}), ({"epochs": 1}, {})]
)
def test_where_nothing_is_gained_images_are_gone_over(
    database, start_worker, photos, runs, request_, options
):
    start_worker()
    job = trained(database, **with_options(photos | request_, **options))
    assert {name for name, *_ in runs[job["id"]]} == {"loss"}


def test_columns_are_gone_over_too(database, start_worker, runs):
    start_worker()
    request = {"architecture": "mlp", "features": ["a", "b"], "epochs": 2}
    first = trained(database, "points", **request)
    options = {"freeze_backbone": True, "start_from": "m"}
    job = trained(database, "points", **request, initial_model_id=first["model_id"], options=options)
    assert {name for name, *_ in runs[job["id"]]} == {"loss"}


def test_an_explanation_tells_of_the_stage_that_takes_the_memory(database, start_worker, photos):
    start_worker()
    job = trained(database, **photos)
    explained = trained(database, kind="explain", **photos)
    rows = {row["property"]: row["value"] for row in explained["result"]["rows"]}
    assert int(rows["vanilla_peak"]) == job["vanilla_peak_nbytes"]
    assert int(rows["iterations"]) == 4


@pytest.mark.parametrize("iteration", one_in(2, [3, 6]))
def test_a_paused_job_goes_on_with_what_was_made(database, start_worker, photos, runs, pause, iteration):
    worker = start_worker()
    whole = trained(database, **photos)
    runs.clear()
    job = pause.trained(iteration, database, "photos", **OF_ALL | photos)
    once = [number for name, number in runs[job["id"]] if name != "loss"]
    # The second attempt looks at the first batch that it makes, too.
    assert once == ([1, 1, 2, 3, 3, 4] if iteration == 3 else [1, 1, 2, 3, 4])
    assert database.weights(job["id"]) == database.weights(whole["id"])
    assert metrics(database, job) == metrics(database, whole)
    for name in ("measured_peak_nbytes", "vanilla_peak_nbytes"):
        assert job[name] == whole[name]
    database.let_go(worker)


def test_an_attempt_that_is_taken_for_dead_is_in_nobodys_way(database, start_worker, photos, monkeypatch):
    start_worker()
    whole = trained(database, **photos)
    names = []
    usual = FeatureFile.__init__

    def init(file, path, *arguments, **named):
        names.append(path.name)
        usual(file, path, *arguments, **named)

    def held(folder, check, *, name):
        check()
        return usual_lock(folder, check, name=name)

    usual_lock = extracting.locked
    monkeypatch.setattr(FeatureFile, "__init__", init)
    monkeypatch.setattr(extracting, "locked", held)
    job = trained(database, **photos)
    # Of the first attempt, with a name of its own.
    assert [name.rpartition(".")[2] for name in names] == ["1"]
    assert database.weights(job["id"]) == database.weights(whole["id"])


def test_who_asks_for_eager_pytorchs_bits_has_the_whole_step(database, start_worker, photos, runs):
    start_worker()
    job = trained(database, policy="auto_exact", **photos)
    assert {name for name, *_ in runs[job["id"]]} == {"loss"}


@pytest.mark.thorough
def test_a_job_whose_worker_is_killed_goes_on_with_what_was_made(
    database, start_worker, start_forked, photos
):
    request = with_options(photos, checkpoint_iterations=20) | {"epochs": 300}
    worker = start_worker()
    whole = trained(database, **request)
    database.let_go(worker)
    supervisor = start_forked()
    job = database.submit("photos", **OF_ALL | request)
    database.wait_until(job, lambda row: row["phase"] == "training" and row["iteration"] > 40)
    os.kill(supervisor.worker_pid, signal.SIGKILL)
    row = database.wait(job)
    assert (row["state"], row["attempt"]) == ("succeeded", 2)
    assert len(events(database, row, "features_kept")) == 1
    assert database.weights(job) == database.weights(whole["id"])
    assert row["measured_peak_nbytes"] == whole["measured_peak_nbytes"]


@pytest.mark.parametrize("many", [10**6, 10])
@pytest.mark.thorough
def test_a_device_that_replays_makes_the_same(database, late_workers, photos, monkeypatch, many):
    monkeypatch.setattr(planned_step, "_REPEATS_FROM", many)
    weights = []
    for replay in (False, True):
        worker = late_workers.start(replay=replay)
        job = trained(database, **photos | {"epochs": 12, "batch_size": 2})
        assert events(database, job, "features_kept")
        # The epochs are, which have the same work to do again and again, and features of many batches.
        assert len(events(database, job, "replayed")) == (0 if not replay else 2 if many == 10 else 1)
        weights.append(database.weights(job["id"]))
        database.let_go(worker)
    assert weights[0] == weights[1]


def test_whether_rows_are_apart_is_seen_in_a_turn_of_the_jobs_own(
    database, start_worker, photos, monkeypatch
):
    held, usual = [], PlannedStep.run

    def run(step, batch, **named):
        held.append(step._job.turn._held)
        return usual(step, batch, **named)

    monkeypatch.setattr(PlannedStep, "run", run)
    start_worker()
    trained(database, **photos)
    assert all(held)


def test_trials_of_a_search_make_them_once(database, start_worker, photos, runs):
    database.execute("INSERT INTO tensile.architectures SELECT 'test_resnet', 'timm', 'test_resnet'")
    start_worker()
    searches = Searches(database)
    options = {"pretrained": True, "freeze_backbone": True}
    search = searches.submit(
        {"learning_rate": {"choices": [0.001, 0.01, 0.1]}},
        architecture="test_resnet",
        source="photos",
        features=["image"],
        optimizer="adam",
        method="grid",
        max_parallel=3,
        epochs=1,
        batch_size=8,
        validation=0.25,
        seed=1,
        options=Jsonb(options),
    )
    assert database.wait(search)["state"] == "succeeded"
    trials = searches.trials(search)
    assert len(trials) == 3
    made = [[number for name, number in runs[trial["job_id"]] if name != "loss"] for trial in trials]
    assert sorted(made, key=len) == [[], [], [1, 1, 2, 3, 4]]
    # One epoch alone goes over the images themselves.
    (model,) = searches.models()
    (best,) = (trial for trial in trials if trial["job_id"] == model["job_id"])
    rate = best["params"]["learning_rate"]
    alone = trained(database, **photos | {"epochs": 1, "learning_rate": rate, "options": options})
    assert "backbone_features/0" not in {name for name, *_ in runs[alone["id"]]}
    assert database.weights(alone["id"]) == database.weights(best["job_id"])


def test_features_that_depend_on_the_rows_beside_them_are_not_kept(
    database, start_worker, photos, monkeypatch
):
    def mixed(step, batch, *, iteration, update=1):
        result = usual(step, batch, iteration=iteration, update=update)
        outputs = {
            name: value if name == "loss" else value + value[:1] for name, value in result.outputs.items()
        }
        return replace(result, outputs=outputs)

    usual = PlannedStep.run
    start_worker()
    whole = trained(database, **photos)
    monkeypatch.setattr(PlannedStep, "run", mixed)
    job = trained(database, **photos)
    assert events(database, job, "features_not_kept") == [
        {"reason": "what the backbone makes of an image depends on those beside it"}
    ]
    assert database.weights(job["id"]) == database.weights(whole["id"])


def test_a_disk_that_is_full_meanwhile_costs_nothing_but_time(database, start_worker, photos, monkeypatch):
    def append(file, batches):
        raise DiskFull("the features cannot be written: No space left on device")

    start_worker()
    whole = trained(database, **photos)
    monkeypatch.setattr(FeatureFile, "append", append)
    job = trained(database, **photos)
    assert events(database, job, "features_not_kept") == [
        {"reason": "the features cannot be written: No space left on device"}
    ]
    assert database.weights(job["id"]) == database.weights(whole["id"])
