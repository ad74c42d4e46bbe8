"""The command line on real servers: its private one, and one that it did not make."""

import json

import psycopg
import pytest
from typer.testing import CliRunner

from tensile_db.cli import app
from tensile_db.local import LocalCluster
from tests.throw_away import server_folder

# Its tests share a fixture.
pytestmark = pytest.mark.xdist_group("cli")


@pytest.fixture(scope="module")
def run():
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    return lambda *arguments: runner.invoke(app, arguments)


@pytest.fixture(scope="module")
def folder(run):
    """The folder of a private cluster that `up` has made."""
    with server_folder("tensile-cli-") as parent:
        folder = parent / "private"
        result = run("up", "--no-worker", "--folder", str(folder))
        assert result.exit_code == 0, result.output
        yield folder
        assert run("down", "--remove", "--yes", "--folder", str(folder)).exit_code == 0
        assert not folder.exists()


def test_up_tells_how_to_connect_and_how_to_stop(run, folder):
    result = run("up", "--no-worker", "--folder", str(folder))
    assert result.exit_code == 0
    assert f"host={LocalCluster(folder).socket_directory}" in result.stdout
    assert f"down --folder {folder}" in result.stdout


def test_down_where_nothing_runs_says_so(run, tmp_path):
    result = run("down", "--folder", str(tmp_path))
    assert result.exit_code == 0
    assert "Nothing runs." in result.stdout


def test_where_nobody_can_answer_down_deletes_nothing_and_says_what_would(run, folder):
    result = run("down", "--remove", "--folder", str(folder))
    assert result.exit_code == 1
    assert "Nothing was deleted. Where nobody can answer, add --yes." in result.stderr
    assert LocalCluster(folder).is_running()


def test_down_deletes_a_cluster_and_nothing_else_in_its_folder(run):
    with server_folder("tensile-cli-") as folder:
        LocalCluster(folder, durable=False).create()
        (folder / "thesis.txt").write_text("years")
        for made in ("worker.lock", "worker.log", "worker.options", "memory.png"):
            (folder / made).write_text("")
        rows = folder / "worker.cache" / "database-1" / "job-1-1"
        rows.mkdir(parents=True)
        (rows / "y.npy").write_text("")
        result = run("down", "--remove", "--yes", "--folder", str(folder))
        assert result.exit_code == 0, result.output
        assert f"{folder} stays, for it has other things in it: thesis.txt" in result.stdout
        assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_down_deletes_a_link_to_the_workers_rows_and_not_what_is_there(run, tmp_path):
    with server_folder("tensile-cli-") as folder:
        LocalCluster(folder, durable=False).create()
        (tmp_path / "rows").write_text("")
        (folder / "worker.cache").symlink_to(tmp_path)
        result = run("down", "--remove", "--yes", "--folder", str(folder))
        assert result.exit_code == 0, result.output
        assert not folder.exists()
        folder.mkdir()
    assert (tmp_path / "rows").exists()


def test_the_demo_user_can_make_tables_and_ask_the_doctor(folder):
    with psycopg.connect(LocalCluster(folder).dsn(user="demo")) as connection:
        connection.execute("CREATE TABLE mine (id integer)")
        found = dict(connection.execute('SELECT "check", status FROM tensile_doctor()').fetchall())
    assert found["role"] == "ok"
    assert found["loopback"] == "ok"
    assert found["worker"] == "problem"


def test_the_workers_login_is_a_worker_and_no_superuser(folder):
    query = (
        "SELECT pg_has_role(rolname, 'tensile_worker', 'MEMBER'), rolsuper FROM pg_roles"
        " WHERE rolname = 'tensile_worker_login'"
    )
    with psycopg.connect(LocalCluster(folder).dsn()) as connection:
        assert connection.execute(query).fetchone() == (True, False)


def test_status_without_a_worker_exits_with_3(run, folder):
    result = run("status", "--folder", str(folder))
    assert result.exit_code == 3
    assert "PostgreSQL  running" in result.stdout
    assert "worker      stopped" in result.stdout


def test_the_doctor_finds_that_no_worker_runs(run, folder):
    result = run("doctor", "--folder", str(folder), "--json")
    problems = [entry["check"] for entry in json.loads(result.stdout) if entry["status"] == "problem"]
    assert result.exit_code == 3
    assert problems == ["process", "worker"]


def test_install_works_on_a_server_that_the_project_did_not_make(run, empty_database):
    assert run("install", empty_database).exit_code == 0
    again = run("install", empty_database)
    assert again.exit_code == 0
    assert "tensile_grant_usage" in again.stdout
    with psycopg.connect(empty_database) as connection:
        row = connection.execute("SELECT kind FROM tensile.architectures WHERE name = 'vgg16'").fetchone()
    assert row == ("timm",)


def test_install_by_a_role_that_is_no_superuser_is_refused_with_a_hint(run, cluster, empty_database):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody_special")
        connection.execute("CREATE ROLE nobody_special LOGIN")
    dsn = psycopg.conninfo.make_conninfo(empty_database, user="nobody_special")
    result = run("install", dsn)
    assert result.exit_code == 1
    assert "untrusted language" in result.stderr
    assert "Connect as a superuser" in result.stderr


def test_install_into_a_database_that_is_not_there_says_so(run, cluster):
    result = run("install", cluster.dsn(dbname="absent"))
    assert result.exit_code == 1
    assert 'database "absent" does not exist' in result.stderr
