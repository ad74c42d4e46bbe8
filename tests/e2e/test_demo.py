"""The private cluster with a real worker: the demo's tour on small networks, and stopping in the middle."""

import io

import psycopg
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from tensile_db.cli import app
from tensile_db.commands.background import BackgroundWorker
from tensile_db.demo.sessions import Psql
from tensile_db.demo.tour import Tour, TourSettings
from tensile_db.local import LocalCluster
from tests.patience import wait_until
from tests.throw_away import server_folder

# Its tests share a fixture.
pytestmark = pytest.mark.xdist_group("demo")


@pytest.fixture(scope="module")
def run():
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    return lambda *arguments: runner.invoke(app, arguments)


@pytest.fixture(scope="module")
def folder(run):
    """The folder of a private cluster with its worker, in 64 MiB of device memory."""
    with server_folder("tensile-demo-") as parent:
        folder = parent / "private"
        result = run("up", "--folder", str(folder), "--memory", "64MiB", "--threads", "1")
        assert result.exit_code == 0, result.output
        yield folder
        result = run("down", "--remove", "--yes", "--folder", str(folder))
        assert result.exit_code == 0, result.output


@pytest.fixture
def dsn(folder):
    return LocalCluster(folder).dsn(user="demo")


def value(dsn, query, *arguments):
    with psycopg.connect(dsn, autocommit=True) as connection:
        ((found,),) = connection.execute(query, arguments).fetchall()
    return found


def test_the_tour_learns_stays_within_the_budget_and_predicts(folder, dsn, tmp_path):
    settings = TourSettings(
        rows=300,
        new_rows=40,
        alone="test_resnet",
        epochs=6,
        few_rows=40,
        few_batch_size=8,
        together=(("test_resnet", 64), ("test_efficientnet", 64)),
        memory_nbytes=64 * 2**20,
    )
    shown = io.StringIO()
    psql = Psql(LocalCluster(folder).programs.program("psql"), dsn)
    Tour(console=Console(file=shown, width=200), psql=psql, dsn=dsn, settings=settings).run(
        tmp_path / "memory.png"
    )
    assert "NOTICE:  job" in shown.getvalue()
    assert "It learned" in shown.getvalue()
    assert value(dsn, "SELECT count(*) FROM predicted WHERE probability BETWEEN 0 AND 1") == 40
    assert value(dsn, "SELECT max(device_peak_nbytes) FROM tensile.memory_peaks") <= 64 * 2**20
    with Image.open(tmp_path / "memory.png") as picture:
        assert picture.format == "PNG"


def test_the_doctor_is_content_with_a_running_cluster(run, folder):
    result = run("doctor", "--folder", str(folder))
    assert result.exit_code == 0, result.output
    assert "problem" not in result.output


def test_a_worker_that_runs_with_these_options_or_any_where_none_are_given_is_left_alone(run, folder):
    before = BackgroundWorker(folder).pid()
    for options in (("--memory", "64MiB", "--threads", "1"), ()):
        result = run("up", "--folder", str(folder), *options)
        assert result.exit_code == 0, result.output
        assert BackgroundWorker(folder).pid() == before


def test_a_job_under_way_goes_on_after_down_and_up(run, folder, dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE points AS SELECT i % 7 AS a, i % 2 = 0 AS label FROM generate_series(1, 512) i"
        )
    job = value(
        dsn,
        "SELECT tensile_submit('mlp', 'points', features => '{a}', epochs => 400, batch_size => 32,"
        " validation => 0)",
    )
    wait_for(dsn, "SELECT iteration > 20 FROM tensile.jobs WHERE id = %s", job)
    shown = run("status", "--folder", str(folder)).stdout
    assert f"{job} " in shown
    assert "/6400 " in shown
    assert run("down", "--folder", str(folder)).exit_code == 0
    assert run("status", "--folder", str(folder)).exit_code == 3
    # With the options of the last time.
    assert run("up", "--folder", str(folder)).exit_code == 0
    workers = "SELECT memory_nbytes FROM tensile.devices ORDER BY worker_id DESC LIMIT 1"
    assert value(dsn, workers) == 64 * 2**20
    assert value(dsn, "SELECT state FROM tensile_wait(%s)", job) == "succeeded"
    assert value(dsn, "SELECT attempt FROM tensile.jobs WHERE id = %s", job) == 2
    assert value(dsn, "SELECT iteration FROM tensile.jobs WHERE id = %s", job) == 6400


def wait_for(dsn, query, *arguments):
    wait_until(lambda: value(dsn, query, *arguments), lambda: query)
