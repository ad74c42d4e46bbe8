"""What takes longer than 64 bits can tell is refused before anything is planned."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.errors import DoesNotFit, InvalidRequest
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.clocks import MOST_NS, check_clock
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples
from tests.graphs.hand_made import chain, device_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs


def test_ops_that_take_too_long_are_refused_with_their_time():
    with pytest.raises(InvalidRequest, match=r"ops take 1(0{19}) ns on hand-made.* no clock"):
        check_clock(chain(), [10**18] * 10, device_of(10**6))


def test_copies_that_take_too_long_are_refused():
    # A byte takes 1 s; the ops use 812.
    with pytest.raises(InvalidRequest, match=r"after each of them, 1624000000000 ns"):
        check_clock(chain(), [MOST_NS // 64] * 10, device_of(10**6, 1))
    check_clock(chain(), [1] * 10, device_of(10**6, 1))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["auto", "tensile", "capuchin", "superneurons_memory"])
@given(data=st.data())
@examples(20)
def test_what_is_just_not_refused_is_planned(data, policy):
    graph, device = data.draw(training_graphs(4)), data.draw(devices())
    latencies = data.draw(latencies_for(graph))
    most_ns = MOST_NS // 65
    slow = [latency_ns * most_ns // sum(latencies) for latency_ns in latencies]
    least, eager = lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)
    device = replace(device, memory_nbytes=data.draw(st.integers(least, 2 * eager)))
    check_clock(graph, slow, device)
    try:
        (made,) = plan_jobs([JobRequest(job_id=1, graph=graph, latencies_ns=slow, policy=policy)], device)
    except DoesNotFit:
        event("does not fit")
        return
    event("stalls" if made.prediction.time_ns > sum(slow) else "hides everything")
    assert made.prediction.time_ns >= made.prediction.lower_bound_time_ns
