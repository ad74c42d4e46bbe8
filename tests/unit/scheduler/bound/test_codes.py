"""Codes in the lower bound on time: worked by hand, and below plans with any tensors packed."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from tensile_db.errors import DoesNotFit
from tensile_db.graph import Code, Phase, Role, TensorId
from tensile_db.scheduler.bound.time_bound import lower_bound_time_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.packing.latencies import as_packed
from tensile_db.scheduler.packing.packed_graph import packable
from tensile_db.scheduler.plan import Rewriting
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.alone import plan_within
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.timeline import simulate_settled
from tests.examples import examples
from tests.graphs.hand_made import device_of, graph_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs

#: Left out of `make check`.
pytestmark = pytest.mark.slow

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD


def _rectified_over_a_large_op():
    """Return a step that holds 1,024 bytes over an op which writes 1,000; signs of them are 32 bytes.

    A copy of them takes 1,024 ns each way; to pack them takes 1,057: 1 and a byte a nanosecond.
    """
    rows = [(1024, Role.ACTIVATION), (1000, Role.ACTIVATION), (0, Role.ACTIVATION), (0, Role.ACTIVATION)]
    graph = graph_of(
        rows,
        [
            ("aten.relu.default", FORWARD, [], [0, 2], False),
            ("large", FORWARD, [2], [1, 3], False),
            ("aten.threshold_backward.default", BACKWARD, [0, 3], [], False),
        ],
    )
    made, large, use = graph.ops
    tensors = [replace(graph.tensors[0], dtype="float32", shape=(256,)), *graph.tensors[1:]]
    use = replace(use, codes=((TensorId(0), Code.SIGNS),), moved_nbytes=1024)
    return replace(graph, tensors=tuple(tensors), ops=(made, large, use))


@pytest.mark.parametrize(
    ("bytes_per_s", "budget_nbytes", "want_ns"),
    [
        # All is there.
        (10**4, 2024, 300),
        # It is away as a whole while the large op runs, and what that takes least is to pack it: what takes
        # the code then moves 32 of 1,024 bytes.
        (10**4, 1500, 100 + 1057 + 100 + 4),
        (10**4, 1032, 100 + 1057 + 100 + 4),
        # Over a link that takes a nanosecond each way it is copied instead.
        (1024 * 10**9, 1500, 302),
    ],
)
def test_to_pack_takes_time(bytes_per_s, budget_nbytes, want_ns):
    device = device_of(10**6, bytes_per_s)
    bound_ns = lower_bound_time_ns(_rectified_over_a_large_op(), [100, 100, 100], device, budget_nbytes)
    assert bound_ns == want_ns


def test_codes_have_bytes():
    graph, device = _rectified_over_a_large_op(), device_of(10**6, 10**4)
    at_codes_ns, below_ns = (
        lower_bound_time_ns(graph, [100, 100, 100], device, budget_nbytes) for budget_nbytes in (1032, 1024)
    )
    # 8 bytes of the code are away, and take 100,000 ns each to come back.
    assert below_ns - at_codes_ns == pytest.approx(800_000, rel=0.01)


def test_what_dropout_drew_is_away_where_its_code_is_taken_going_forward():
    rows = [(1024, Role.ACTIVATION), (1000, Role.ACTIVATION), (0, Role.ACTIVATION), (0, Role.ACTIVATION)]
    graph = graph_of(
        rows,
        [
            ("draw", FORWARD, [], [0, 2], False),
            ("aten.mul.Tensor", FORWARD, [0, 2], [1, 3], True),
            ("aten.mul.Tensor", BACKWARD, [0, 3], [], False),
        ],
    )
    drawn = replace(graph.tensors[0], dtype="float32", shape=(256,))
    taken = [replace(op, codes=((TensorId(0), Code.SIGNS),), moved_nbytes=1024) for op in graph.ops[1:]]
    graph = replace(graph, tensors=(drawn, *graph.tensors[1:]), ops=(graph.ops[0], *taken))
    bound_ns = lower_bound_time_ns(graph, [100, 100, 100], device_of(10**6, 10**4), 1100)
    # The part that has no room beside what the first product makes; for each product it takes 96 ns less.
    part = (1024 + 1000 - 1100) / 1024
    assert bound_ns == ceil(300 + part * (1057 - 2 * 96))


@pytest.mark.usefixtures("little_effort")
@given(st.data())
@examples(60)
def test_no_plan_undercuts_it_whatever_is_packed(data):
    graph = data.draw(training_graphs())
    assume(packable(graph))
    latencies_ns, device = data.draw(latencies_for(graph)), data.draw(devices())
    packed = tuple(sorted(data.draw(st.sets(st.sampled_from(sorted(packable(graph))), min_size=1))))
    job = as_packed(JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns), packed, device)
    least, most = lower_bound_peak_nbytes(job.graph), vanilla.peak_nbytes(job.graph)
    budget_nbytes = data.draw(st.integers(least, most))
    try:
        plan = plan_within(job, Rewriting(packed=packed), device, budget_nbytes, 1)
    except DoesNotFit:
        event("has no plan")
        return
    _, prediction = simulate_settled(job.graph, job.latencies_ns, plan, device)
    ops_ns = sum(job.latencies_ns)
    event("takes longer than its ops" if prediction.period_ns > ops_ns else "takes as long as its ops")
    bound_ns = lower_bound_time_ns(graph, latencies_ns, device, prediction.peak_nbytes)
    event("packing is bounded" if bound_ns > sum(latencies_ns) else "is not")
    assert bound_ns <= prediction.period_ns
