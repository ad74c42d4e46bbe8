"""The demo's tour with a puppet in the worker's place: what it shows, and what is no success to it."""

import io

import psycopg
import pytest
from PIL import Image
from psycopg.types.json import Jsonb
from rich.console import Console

from tensile_db.demo.sessions import Psql, Statement
from tensile_db.demo.tour import Tour, TourSettings
from tensile_db.errors import BadData, DeviceOutOfMemory, KernelFailed
from tests.fixtures.db import Puppet

MIB = 2**20
SETTINGS = TourSettings(
    rows=30,
    new_rows=4,
    epochs=2,
    few_rows=10,
    together=(("vgg16", 32), ("resnet50", 64)),
    memory_nbytes=150 * MIB,
)


def played(*, accuracy=0.8, device_peak=140 * MIB):
    """Return the script of a worker whose every training job does this well."""

    def script(puppet, job):
        if job["kind"] == "predict":
            puppet.execute(
                "INSERT INTO tensile.predictions SELECT %s, i, i, 'Sandal', 0.5 FROM generate_series(1, 4) i",
                job["id"],
            )
            puppet.succeed(job)
            return
        puppet.execute(
            "INSERT INTO tensile.plans (job_id, version, policy, reason, budget_nbytes, vanilla_peak_nbytes,"
            " peak_nbytes, time_ns, swap_nbytes, recompute_count)"
            " VALUES (%s, 1, 'tensile', 'cold_start', %s, %s, %s, 1000000, %s, 3)",
            *(job["id"], 150 * MIB, 100 * MIB, 70 * MIB, 20 * MIB),
        )
        puppet.execute(
            "INSERT INTO tensile.memory_timeline_points VALUES (%s, 1, 0, 0, %s), (%s, 1, 1, 500000, %s)",
            *(job["id"], 50 * MIB, job["id"], 70 * MIB),
        )
        for epoch, loss in ((1, 2.0), (2, 1.25)):
            puppet.execute(
                "INSERT INTO tensile.training_metrics (job_id, epoch, split, metric, value) VALUES"
                " (%s, %s, 'train', 'loss', %s), (%s, %s, 'validation', 'accuracy', %s)",
                *(job["id"], epoch, loss, job["id"], epoch, accuracy),
            )
        puppet.execute(
            "INSERT INTO tensile.memory_peaks (job_id, plan_version, iteration, peak_nbytes,"
            " device_peak_nbytes) VALUES (%s, 1, 1, %s, %s)",
            *(job["id"], 70 * MIB, device_peak),
        )
        puppet.execute(
            "INSERT INTO tensile.models (name, version, owned_by, owner, architecture, task, features,"
            " target, parameter_nbytes)"
            " SELECT %s, count(*) + 1, %s, %s, %s, 'classification', %s, 'label', 0"
            " FROM tensile.models WHERE name = %s",
            *(job["model"], job["submitted_by"], job["owner"], job["architecture"]),
            *(Jsonb({"columns": ["image"]}), job["model"]),
        )
        puppet.succeed(
            job,
            loss=1.25,
            epoch=2,
            iteration=2,
            vanilla_peak_nbytes=100 * MIB,
            measured_peak_nbytes=70 * MIB,
            finished_at=puppet.value("SELECT clock_timestamp()"),
            result={"loss": 1.25},
        )

    return script


@pytest.fixture
def alices(site):
    """A database where alice may make tables."""
    site.execute("DROP TABLE images_table")
    site.execute("GRANT CREATE ON SCHEMA public TO alice")
    return site


@pytest.fixture
def psql(cluster, alices):
    return Psql(cluster.programs.program("psql"), alices.dsn("alice"))


@pytest.fixture
def take_tour(alices, psql, tmp_path):
    """Take the tour and return what it printed."""

    def take(script):
        shown = io.StringIO()
        console = Console(file=shown, width=200)
        tour = Tour(console=console, psql=psql, dsn=alices.dsn("alice"), settings=SETTINGS)
        with Puppet(alices, script):
            tour.run(tmp_path / "memory.png")
        return shown.getvalue()

    return take


def test_the_tour_shows_statements_notices_learning_and_memory(take_tour, tmp_path):
    shown = take_tour(played())
    assert "demo=> SELECT * FROM tensile_train('vgg16', 'images_table'" in shown
    assert "NOTICE:  job" in shown
    assert "It learned: 80% of the held-out rows, where chance gives 10%." in shown
    assert "Eager PyTorch would have needed 200.0 MiB for them" in shown
    assert "never held more than 140.0 MiB of 150.0 MiB" in shown
    assert any("saved" in line and line.count("30%") == 3 for line in shown.splitlines())
    with Image.open(tmp_path / "memory.png") as picture:
        assert picture.format == "PNG"


def test_the_tour_can_be_taken_again(take_tour):
    take_tour(played())
    assert "It learned" in take_tour(played())


def test_the_tables_hold_png_images_and_text_labels(take_tour, alices):
    take_tour(played())
    (row,) = alices.execute("SELECT image, label FROM images_table WHERE id = 1")
    with Image.open(io.BytesIO(row["image"])) as image:
        assert image.format == "PNG"
    assert isinstance(row["label"], str)
    assert alices.value("SELECT count(*) FROM images_table") == 30
    assert alices.value("SELECT count(*) FROM images_few") == 10
    assert alices.value("SELECT count(*) FROM predicted") == 4


def test_a_network_that_did_not_learn_fails_the_tour(take_tour):
    with pytest.raises(BadData, match="vgg16 did not learn: 15%"):
        take_tour(played(accuracy=0.15))


def test_a_device_that_held_more_than_its_budget_fails_the_tour(take_tour):
    with pytest.raises(DeviceOutOfMemory):
        take_tour(played(device_peak=151 * MIB))


def test_a_job_that_fails_ends_the_tour_with_its_error(take_tour):
    def script(puppet, job):
        puppet.fail(job, "22P03", "row 7 is no image", "Look at it.")

    with pytest.raises(KernelFailed, match="row 7 is no image"):
        take_tour(script)


def test_sessions_run_at_once_and_all_are_heard(psql):
    heard = []
    statements = [
        Statement(name="first", sql="SELECT pg_advisory_lock(1), pg_sleep(0.2), 'done' AS first"),
        Statement(name="second", sql="SELECT 'done' AS second"),
    ]
    psql.run_together(statements, lambda name, line: heard.append((name, line.split())))
    assert ("first", ["first", "|", "done"]) in heard
    assert heard.index(("second", ["second", "|", "done"])) < heard.index(("first", ["first", "|", "done"]))


def test_a_session_that_fails_tells_which_and_why_after_the_others_have_ended(psql):
    heard = []
    statements = [
        Statement(name="wrong", sql="SELECT 1/0"),
        Statement(name="right", sql="SELECT pg_sleep(0.2), 'done' AS right"),
    ]
    with pytest.raises(KernelFailed, match="wrong failed: division by zero"):
        psql.run_together(statements, lambda name, line: heard.append(name))
    assert "right" in heard


def test_a_users_psqlrc_is_left_alone(psql, tmp_path, monkeypatch):
    (tmp_path / "psqlrc").write_text("\\echo surprise\n")
    monkeypatch.setenv("PSQLRC", str(tmp_path / "psqlrc"))
    heard = []
    psql.run(Statement(name="quiet", sql="SELECT 1 AS one"), heard.append)
    assert not any("surprise" in line for line in heard)


def test_images_are_stored_uncompressed(take_tour, alices):
    take_tour(played())
    with psycopg.connect(alices.admin) as connection:
        storage = connection.execute(
            "SELECT attstorage::text FROM pg_attribute"
            " WHERE attrelid = 'images_table'::regclass AND attname = 'image'"
        ).fetchone()
    assert storage == ("e",)
