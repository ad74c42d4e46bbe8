"""The lock on a folder of files that several jobs share."""

import multiprocessing
import time

import pytest

from tensile_db.worker.jobs.caches import locked
from tests.at_once import at_once


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
