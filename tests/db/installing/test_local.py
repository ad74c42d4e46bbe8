"""The private PostgreSQL: made once, found again, and never in anybody's way."""

import errno
import os
import signal
import stat
from pathlib import Path

import psycopg
import pytest

from tensile_db import local
from tensile_db.errors import LocalServerFailed
from tensile_db.local import DEMO_USER, WORKER_LOGIN, LocalCluster
from tests.patience import wait_until
from tests.throw_away import server_folder


@pytest.fixture
def folder():
    with server_folder("tensile-local-") as folder:
        yield folder


@pytest.fixture
def own_cluster(folder):
    cluster = LocalCluster(folder, durable=False)
    cluster.start()
    yield cluster
    cluster.remove()


def fetch(dsn, query):
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def postmaster(cluster):
    return int((cluster.data / "postmaster.pid").read_text().split("\n", 1)[0])


def wait_until_dead(cluster):
    wait_until(lambda: not cluster.is_running(), lambda: "the killed server still answers")


def test_starting_twice_leaves_the_first_server_alone(own_cluster):
    before = postmaster(own_cluster)
    own_cluster.start()
    assert postmaster(own_cluster) == before


def test_data_survives_a_stop_and_a_start(own_cluster):
    with psycopg.connect(own_cluster.dsn()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    own_cluster.stop()
    assert not own_cluster.is_running()
    own_cluster.stop()
    own_cluster.start()
    assert fetch(own_cluster.dsn(), "TABLE kept") == [(42,)]


def test_a_killed_server_starts_again_over_its_stale_lock_files(own_cluster):
    os.kill(postmaster(own_cluster), signal.SIGKILL)
    wait_until_dead(own_cluster)
    own_cluster.start()
    assert fetch(own_cluster.dsn(), "SELECT 1") == [(1,)]


def test_a_lock_file_naming_another_program_does_not_hinder_the_start(own_cluster):
    os.kill(postmaster(own_cluster), signal.SIGKILL)
    wait_until_dead(own_cluster)
    lock = own_cluster.data / "postmaster.pid"
    first, rest = lock.read_text().split("\n", 1)
    assert first != str(os.getpid())
    lock.write_text(f"{os.getpid()}\n{rest}")
    own_cluster.start()
    assert fetch(own_cluster.dsn(), "SELECT 1") == [(1,)]


def test_the_worker_login_and_the_demo_user_are_no_superusers(own_cluster):
    query = "SELECT rolname, rolsuper, rolcanlogin FROM pg_roles WHERE rolname = ANY(%s) ORDER BY rolname"
    with psycopg.connect(own_cluster.dsn()) as connection:
        found = connection.execute(query, [[WORKER_LOGIN, DEMO_USER]]).fetchall()
    assert found == [("demo", False, True), ("tensile_worker_login", False, True)]
    assert fetch(own_cluster.dsn(user=DEMO_USER), "SELECT current_user") == [("demo",)]


def test_nothing_listens_on_a_network_and_nobody_else_reaches_the_socket(own_cluster):
    assert fetch(own_cluster.dsn(), "SHOW listen_addresses") == [("",)]
    for path in (own_cluster.home, own_cluster.socket_directory):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_plpython_runs_outside_any_virtual_environment(own_cluster):
    with psycopg.connect(own_cluster.dsn()) as connection:
        connection.execute("CREATE EXTENSION plpython3u")
        connection.execute(
            "CREATE FUNCTION prefix() RETURNS text LANGUAGE plpython3u AS 'import sys; return sys.prefix'"
        )
        assert connection.execute("SELECT prefix()").fetchone() == ("/usr",)


def test_a_path_too_long_for_a_socket_moves_the_socket_only(folder):
    deep = folder / ("d" * 120)
    cluster = LocalCluster(deep, durable=False)
    try:
        cluster.start()
        assert cluster.data == deep / "postgres" / "data"
        assert len(str(cluster.socket_directory)) < 80
        assert fetch(cluster.dsn(), "SELECT 1") == [(1,)]
    finally:
        cluster.remove()
    assert not cluster.socket_directory.exists()


def test_a_socket_folder_that_somebody_else_made_is_refused(folder):
    deep = folder / ("d" * 120)
    cluster = LocalCluster(deep, durable=False)
    cluster.create()
    cluster.socket_directory.symlink_to(folder)
    try:
        with pytest.raises(LocalServerFailed, match="is not a folder of"):
            cluster.start()
    finally:
        cluster.socket_directory.unlink()
        cluster.remove()


def test_a_half_made_cluster_is_made_again(folder):
    cluster = LocalCluster(folder, durable=False)
    cluster.create()
    cluster.data.rename(cluster.home / "data.new")
    (cluster.home / "data.new" / "PG_VERSION").unlink()
    cluster.start()
    assert fetch(cluster.dsn(), "SELECT 1") == [(1,)]
    cluster.remove()


def test_nothing_is_deleted_but_what_was_made(folder):
    cluster = LocalCluster(folder, durable=False)
    cluster.create()
    assert cluster.is_made()
    for kept in (folder / "mine", cluster.home / "mine"):
        kept.write_text("kept")
    cluster.remove()
    assert not cluster.is_made()
    assert sorted(path.name for path in folder.rglob("*")) == ["mine", "mine", "postgres"]


def test_a_half_made_cluster_and_one_whose_removal_ended_half_way_are_deleted(folder):
    cluster = LocalCluster(folder, durable=False)
    cluster.create()
    cluster.data.rename(cluster.home / "data.new")
    (cluster.home / "data.new" / "postgresql.conf").unlink()
    assert cluster.is_made()
    cluster.remove()
    assert list(folder.iterdir()) == []


def test_what_others_keep_in_folders_of_these_names_is_not_deleted(folder):
    cluster = LocalCluster(folder, durable=False)
    # As `up` leaves it that was refused.
    (folder / "lock").touch()
    theirs = cluster.home / "data" / "pgdata" / "PG_VERSION"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("15")
    assert not cluster.is_made()
    cluster.remove()
    assert theirs.exists()


def test_somebody_elses_cluster_is_not_deleted(folder):
    cluster = LocalCluster(folder, durable=False)
    cluster.create()
    settings = cluster.data / "postgresql.conf"
    ours = settings.read_text()
    settings.write_text("# no include\n")
    assert not cluster.is_made()
    cluster.remove()
    assert settings.exists()
    settings.write_text(ours)
    cluster.remove()
    assert not settings.exists()


def test_what_cannot_be_deleted_is_told(folder, monkeypatch):
    def refuse(home):
        raise OSError(errno.EBUSY, "Device or resource busy", str(home))

    cluster = LocalCluster(folder, durable=False)
    cluster.create()
    monkeypatch.setattr(local, "remove_home", refuse)
    with pytest.raises(LocalServerFailed, match=f"cannot delete {cluster.home}: Device or resource busy"):
        cluster.remove()
    monkeypatch.undo()
    cluster.remove()


def test_a_failing_start_says_why(own_cluster):
    own_cluster.stop()
    with (own_cluster.data / "postgresql.conf").open("a") as configuration:
        configuration.write("shared_buffers = 'many'\n")
    with pytest.raises(LocalServerFailed, match='invalid value for parameter "shared_buffers"'):
        own_cluster.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_where_the_servers_user_cannot_reach_the_folder_the_cluster_lies_elsewhere(folder):
    closed = folder / "home"
    closed.mkdir(mode=0o700)
    cluster = LocalCluster(closed / ".tensile", durable=False)
    try:
        cluster.start()
        assert cluster.is_elsewhere
        assert cluster.home.parent == Path("/var/lib/tensile_db")
        assert fetch(cluster.dsn(), "SELECT 1") == [(1,)]
    finally:
        cluster.remove()
    assert not cluster.home.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of somebody else's")
def test_the_server_runs_as_an_unprivileged_user(own_cluster):
    assert own_cluster.data.owner() == "postgres"
    assert Path(f"/proc/{postmaster(own_cluster)}").stat().st_uid == own_cluster.data.stat().st_uid
