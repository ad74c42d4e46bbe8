"""Jobs on `sim:a6000` by the roofline, and a count of how often choices are made for them."""

from dataclasses import replace

import pytest

from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.drafts import Drafter
from tensile_db.scheduler.request import JobRequest

DEVICE = machine("sim:a6000")


def job_of(graph, *, number=1, times=1.0, **options):
    """Return a request; times: what its ops take, of what the roofline says."""
    latencies_ns = tuple(int(times * ns) for ns in predict_latencies_ns(graph, DEVICE))
    return JobRequest(job_id=number, graph=graph, latencies_ns=latencies_ns, **options)


def within(graph, share):
    """Return the device with this share of the memory that eager PyTorch needs."""
    return replace(DEVICE, memory_nbytes=int(share * vanilla.peak_nbytes(graph)))


@pytest.fixture
def drafts(monkeypatch):
    """One entry for each time that choices are made."""
    made = []
    draft = Drafter.draft
    monkeypatch.setattr(Drafter, "draft", lambda *args: made.append(1) or draft(*args))
    return made
