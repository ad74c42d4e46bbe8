"""What a calibration forgets, and when its time begins: its process and catalog are scripted here."""

import contextlib
import time

import pytest

from tensile_db.latency.samples import LatencySample
from tensile_db.scheduler.machines import machine
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.latencies import calibrating
from tensile_db.worker.latencies.calibrating import Calibration
from tensile_db.worker.latencies.measuring_process import Begun, Finished, Measure, Measured

SAMPLE = object.__new__(LatencySample)
SECONDS = 60.0


class Engine:
    """Has no database behind it."""

    @contextlib.contextmanager
    def begin(self):
        yield None


@pytest.fixture
def catalog(monkeypatch):
    """What was done with the catalog, in order; three probes are known."""
    done = []
    monkeypatch.setattr(calibrating.latency_models, "next_probe", lambda *_: 3)
    monkeypatch.setattr(calibrating.latency_models, "forget", lambda *_: done.append("forget"))
    monkeypatch.setattr(calibrating.known, "add_samples", lambda *args: done.append(("add", *args[2:])))
    monkeypatch.setattr(calibrating.known, "read_samples", lambda *_: ())
    monkeypatch.setattr(calibrating.known, "replace_models", lambda *_: done.append("learned"))
    return done


@pytest.fixture
def calibrate(monkeypatch, catalog):
    """Calibrate where the process says this; return the calibration, and from which probe on."""

    def calibrate(answers, *, fresh, start_s=0.0):
        firsts = []

        class Scripted:
            def __init__(self, order):
                self._order = order

            def answers(self):
                if isinstance(self._order, Measure):
                    firsts.append(self._order.first)
                    time.sleep(start_s)
                    yield from answers
                else:
                    yield Finished(learned={})

            def stop(self):
                pass

        monkeypatch.setattr(calibrating, "Measuring", Scripted)
        told = []
        calibration = Calibration(
            Engine(),
            WorkerConfig(dsn=""),
            hardware="a",
            spec=machine("sim:a6000"),
            seconds=SECONDS,
            fresh=fresh,
            on_progress=told.append,
        )
        assert calibration.run() == {}
        return calibration.samples, firsts, told

    return calibrate


@pytest.mark.parametrize(("fresh", "first", "forgotten"), [(False, 3, []), (True, 0, ["forget"])])
def test_what_is_known_is_forgotten_once_when_there_is_something_new(
    calibrate, catalog, fresh, first, forgotten
):
    answers = [Begun(probe=0), Measured(probe=0, samples=())]
    answers += [Measured(probe=number, samples=(SAMPLE,)) for number in (1, 2)]
    assert calibrate(answers, fresh=fresh)[:2] == (2, [first])
    assert catalog == [
        ("add", 0, ()),
        *forgotten,
        ("add", 1, (SAMPLE,)),
        ("add", 2, (SAMPLE,)),
        "learned",
    ]


def test_nothing_is_forgotten_where_nothing_was_measured(calibrate, catalog):
    assert calibrate([], fresh=True)[0] == 0
    assert catalog == ["learned"]


def test_what_the_process_takes_to_start_is_none_of_the_time(calibrate):
    slow_s = 0.5
    *_, told = calibrate([Begun(probe=0), Measured(probe=0, samples=(SAMPLE,))], fresh=False, start_s=slow_s)
    assert 0 <= told[0].share < slow_s / SECONDS
