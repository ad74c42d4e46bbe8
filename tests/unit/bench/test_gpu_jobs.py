"""Which figures the GPU bench plans several jobs with."""

from types import SimpleNamespace

import pytest

from bench.gpu import section_jobs
from bench.gpu.results import Results


class Machine:
    """Opens devices that do nothing, and runs no processes."""

    def open(self, *, replay=False):
        return SimpleNamespace(spec=SimpleNamespace(memory_nbytes=1), replay=replay, close=lambda: None)

    def clean(self):
        pass


class Subject:
    """Remembers on which device it was measured last."""

    name, size = "toy", 4

    def measure(self, device):
        self.measured_on = device
        return {}


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Of each case: whether it is replayed, and where the figures that it was planned with are from."""
    seen, subject = [], Subject()

    def plan(subject, device, *others):
        seen.append((device.replay, subject.measured_on is device))
        return {"seconds": 1.0, "device_peak_nbytes": 1}

    monkeypatch.setattr(section_jobs, "open_subject", lambda *of: subject)
    monkeypatch.setattr(section_jobs, "_alone", lambda *of: (1, 1.0, {}))
    monkeypatch.setattr(section_jobs, "_planned", plan)
    for start in ("with_mps", "without_mps"):
        monkeypatch.setattr(section_jobs, start, lambda *of: {})
    results = Results(tmp_path / "jobs.json", section="jobs", limit_s=1000, facts={})
    section_jobs.run(Machine(), results, quick=False)
    return seen


def test_each_device_has_its_own_figures(planned):
    # A device that replays leaves the host's part out of latencies, one that does not, does not.
    assert planned == [*3 * [(False, True)], *4 * [(True, True)]]
