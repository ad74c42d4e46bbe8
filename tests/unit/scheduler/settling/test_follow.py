"""What a plan is guaranteed to hold is what it is predicted to hold, on captured networks and by hand."""

from dataclasses import replace
from itertools import product

import pytest

from tensile_db.graph import Phase, Role
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.plan import SwapIn
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble
from tensile_db.scheduler.settling.follow import follow_timeline
from tensile_db.scheduler.timeline import simulate_settled
from tests.examples import one_in
from tests.graphs.hand_made import device_of, graph_of
from tests.steps.captured_steps import captured_step

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
        8,
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


def test_copies_that_begin_with_their_trigger_keep_their_turns():
    # While tensor 0 leaves in the middle of op 3, tensor 2 comes back in time for op 4, and 1 for op 5.
    sizes, touched = [30, 30, 20], [[1, 2], [], [0], [], [2], [1], []]
    graph = graph_of(
        [(nbytes, Role.PARAMETER) for nbytes in sizes],
        [("touch", Phase.FORWARD, reads, reads, False) for reads in touched],
    )
    latencies_ns, device = [10, 100, 10, 100, 10, 10, 100], device_of(1000)
    residency = Residency(graph, latencies_ns)
    ops = len(touched)
    for tensor, previous, following, begin, end, delay_ns in (
        (0, 2, 2 + ops, 4, 2 + ops, 0),
        (1, 0, 5, 2, 3, 60),
        (2, 0, 4, 2, 3, 40),
    ):
        gap = Gap(tensor=tensor, previous=previous, following=following, ops=ops)
        residency.add(Absence(gap=gap, begin=begin, end=end, out_position=previous, in_delta_ns=delay_ns))
    plan, before = simulate_settled(graph, latencies_ns, assemble(residency, "by hand"), device)
    assert residency.peak_nbytes == 80 > before.peak_nbytes
    follow_timeline(residency, before, duplex=True)
    plan, after = simulate_settled(graph, latencies_ns, assemble(residency, "by hand"), device)
    returns = [event.tensor for event in plan.events if isinstance(event, SwapIn) and event.trigger_op == 2]
    assert returns == [2, 1]
    assert after.period_ns == before.period_ns
    assert after.peak_nbytes == residency.peak_nbytes
