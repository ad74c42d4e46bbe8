"""When an idle worker measures, and when it does not."""

import threading

import pytest

from tensile_db.worker.latencies.background import BackgroundCalibration


class ScriptedCalibration:
    """Stands in for a calibration: each slice lasts until it is interrupted or told to end."""

    def __init__(self):
        self.slices = 0
        self.under_way = threading.Event()
        self.over = threading.Event()
        self._wake = threading.Condition()
        self._ends = False
        self._should_stop = lambda: False

    def run(self, should_stop):
        self._should_stop = should_stop
        self.slices += 1
        self.under_way.set()
        with self._wake:
            assert self._wake.wait_for(lambda: self._ends or should_stop(), 20)
        self.under_way.clear()
        if should_stop():
            return None
        self.over.set()
        return {}

    def interrupt(self):
        with self._wake:
            self._wake.notify_all()

    def end(self):
        with self._wake:
            self._ends = True
            self._wake.notify_all()


@pytest.fixture
def calibration():
    return ScriptedCalibration()


@pytest.fixture
def background(calibration):
    background = BackgroundCalibration(calibration, is_needed=lambda: True, idle_s=0.05)
    yield background
    background.stop()


def run_job(background, *, during):
    background.around(lambda held, post: during())(None, None)


def test_an_idle_worker_measures_until_it_has_learned(background, calibration):
    background.start()
    assert calibration.under_way.wait(10)
    calibration.end()
    assert calibration.over.wait(10)
    background._thread.join(10)
    assert not background._thread.is_alive()
    assert calibration.slices == 1


@pytest.mark.slow
def test_a_job_ends_the_slice_and_the_next_one_waits_for_its_end(background, calibration):
    background.start()
    assert calibration.under_way.wait(10)
    seen = []

    def during():
        deadline = threading.Event()
        while calibration.under_way.is_set():
            assert not deadline.wait(0.01)
        # Longer than a worker must be idle.
        deadline.wait(0.3)
        seen.append(calibration.slices)

    run_job(background, during=during)
    assert seen == [1]
    assert calibration.under_way.wait(10)
    assert calibration.slices == 2


def test_a_job_that_came_and_went_starts_the_wait_anew(calibration):
    background = BackgroundCalibration(calibration, is_needed=lambda: True, idle_s=1000.0)
    background.start()
    run_job(background, during=lambda: None)
    assert not calibration.under_way.wait(0.1)
    background.stop()
    assert calibration.slices == 0


def test_where_latencies_are_known_nothing_is_measured(calibration):
    background = BackgroundCalibration(calibration, is_needed=lambda: False, idle_s=0.0)
    background.start()
    background._thread.join(10)
    assert not background._thread.is_alive()
    assert calibration.slices == 0
    background.stop()


def test_stopping_ends_a_slice_under_way(background, calibration):
    background.start()
    assert calibration.under_way.wait(10)
    background.stop()
    assert not background._thread.is_alive()
    assert not calibration.over.is_set()


def test_what_was_never_started_can_be_stopped(background):
    background.stop()
