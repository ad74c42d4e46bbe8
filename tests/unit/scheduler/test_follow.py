"""What a plan is guaranteed to hold is what it is predicted to hold, on captured networks."""

from dataclasses import replace
from itertools import product

import pytest

from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.request import JobRequest
from tests.captured_steps import captured_step
from tests.examples import one_in

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

#: A link so slow beside the small networks' ops that copies are under way through many of them.
DEVICE = replace(
    machine("sim:a6000"),
    flops_per_s=28 * 10**10,
    memory_bytes_per_s=650 * 10**7,
    d2h_bytes_per_s=24 * 10**7,
    h2d_bytes_per_s=24 * 10**7,
)


@pytest.fixture(scope="module")
def graph(request):
    return captured_step(request.param, batch=8, side=96)


@pytest.mark.parametrize(
    ("graph", "share", "policy"),
    one_in(
        5,
        product(
            ["test_resnet", "test_vit", "test_efficientnet"],
            [1.0, 0.8, 0.7, 0.6, 0.5, 0.4],
            ["auto", "tensile"],
        ),
    ),
    indirect=["graph"],
)
def test_the_guaranteed_peak_is_the_predicted_one_within_two_percent(graph, share, policy):
    latencies_ns = predict_latencies_ns(graph, DEVICE)
    job = JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy)
    (free,) = plan_jobs([job], DEVICE)
    memory_nbytes = int(share * free.prediction.vanilla_peak_nbytes)
    (made,) = plan_jobs([job], replace(DEVICE, memory_nbytes=memory_nbytes))
    assert made.prediction.guaranteed_peak_nbytes <= memory_nbytes
    ratio = made.prediction.guaranteed_peak_nbytes / made.prediction.peak_nbytes
    assert 1 <= ratio < 1.02
