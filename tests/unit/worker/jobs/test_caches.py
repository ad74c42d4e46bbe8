"""The folder of the files that several jobs share, and the lock on it."""

import errno
import multiprocessing
import time
from pathlib import Path

import pytest

from tensile_db.errors import InvalidRequest
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.jobs.caches import locked, open_cache
from tests.at_once import at_once


def test_a_file_is_no_cache(tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    for folder in (file, file / "below"):
        with pytest.raises(InvalidRequest, match=f"the cache folder {folder} cannot be made"):
            open_cache(WorkerConfig(dsn="dbname=x", cache_dir=folder))


# Not even root may make one there.
def test_a_cache_that_cannot_be_made_is_refused():
    with pytest.raises(InvalidRequest, match="the cache folder /proc/xx cannot be made") as refusal:
        open_cache(WorkerConfig(dsn="dbname=x", cache_dir=Path("/proc/xx")))
    assert "--cache" in refusal.value.hint


def test_a_full_disk_is_not_taken_for_a_mistake(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match="No space left"):
        open_cache(WorkerConfig(dsn="dbname=x", cache_dir=tmp_path))


def test_what_is_no_connection_string_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match='--dsn is no connection string: missing "=" after "garbage"'):
        open_cache(WorkerConfig(dsn="garbage", cache_dir=tmp_path))


@pytest.mark.slow
def test_one_at_a_time_makes_files(tmp_path):
    inside, most = [], []

    def work(_number):
        with locked(tmp_path / "new", lambda: None):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    at_once(work, range(5))
    assert most == [1] * 5


def test_who_waits_can_be_stopped(tmp_path):
    def stop():
        raise KeyboardInterrupt

    with (
        locked(tmp_path, lambda: None),
        pytest.raises(KeyboardInterrupt),
        locked(tmp_path, stop),
    ):
        pass
    with locked(tmp_path, stop):
        pass


def hold(folder, is_held):
    with locked(folder, lambda: None):
        is_held.set()
        time.sleep(60)


@pytest.mark.slow
def test_a_process_that_dies_leaves_no_lock(tmp_path):
    context = multiprocessing.get_context("spawn")
    is_held = context.Event()
    process = context.Process(target=hold, args=(tmp_path, is_held))
    process.start()
    assert is_held.wait(60)
    process.kill()
    process.join()
    with locked(tmp_path, lambda: None):
        pass


@pytest.mark.parametrize(
    ("dsn", "environment", "same"),
    [
        ("user=gpu1 dbname=a", {}, "user=gpu1 dbname=a"),
        ("user=gpu1", {"PGDATABASE": "a"}, "dbname=a"),
        ("user=a", {}, "dbname=a"),
        ("", {"PGUSER": "a"}, "dbname=a"),
        ("dbname=a", {"PGHOST": "h", "PGPORT": "5433"}, "host=h port=5433 dbname=a"),
    ],
)
def test_a_database_has_one_folder_whether_or_not_variables_say_where_it_is(
    tmp_path, monkeypatch, dsn, environment, same
):
    for name in ("PGDATABASE", "PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE", "PGUSER"):
        monkeypatch.delenv(name, raising=False)

    def folder(dsn):
        return open_cache(WorkerConfig(dsn=dsn, cache_dir=tmp_path))

    expected, other = folder(same), folder("dbname=b")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert folder(dsn) == expected != other
