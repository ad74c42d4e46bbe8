"""Rows a second: lately, and of training alone."""

import pytest

from tensile_db.worker.jobs import training


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now_s = 100.0

    monkeypatch.setattr(training.time, "monotonic", lambda: Clock.now_s)
    return Clock


def test_the_speed_follows_also_where_every_epoch_is_shorter_than_the_window(clock):
    speed = training._Speed(batch_size=8)
    seen = []
    for batch in range(20):
        # Batches of one second, then of two; a validation of 30 s after every second batch.
        clock.now_s += 1.0 if batch < 10 else 2.0
        seen.append(speed.after_batch())
        if batch % 2:
            clock.now_s += 30.0
            speed.pause()
    assert seen[0] == 8.0
    assert seen[-1] == 4.0


def test_slow_first_batches_are_soon_left_out(clock):
    speed = training._Speed(batch_size=8)
    clock.now_s += 2.0
    assert speed.after_batch() == 4.0
    for _ in range(300):
        clock.now_s += 0.001
        seen = speed.after_batch()
    assert seen == pytest.approx(8000.0)
