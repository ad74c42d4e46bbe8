"""Each copy that a plan asks for is in its timeline, after what it waits for."""

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import SwapIn, SwapOut
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.seeing.spans import spans_of_events
from tests.examples import examples
from tests.graphs.random_graphs import devices, latencies_for, training_graphs


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["tensile", "auto"])
@given(data=st.data())
@examples(60)
def test_every_copy_of_a_plan_has_its_span(data, policy):
    graph = data.draw(training_graphs())
    least_nbytes, most_nbytes = lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)
    memory_nbytes = data.draw(st.integers(least_nbytes, max(least_nbytes, most_nbytes - 1)))
    device = data.draw(devices(memory_nbytes=memory_nbytes))
    job = JobRequest(
        job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)), policy=policy, hurried=True
    )
    (made,) = plan_jobs([job], device)
    spans = spans_of_events(made.plan, made.timeline)
    ends_ns = {span.op: span.end_ns for span in made.timeline.ops if not span.recompute}
    copied = []
    for each, span in zip(made.plan.events, spans, strict=True):
        if not isinstance(each, SwapIn | SwapOut):
            assert span is None
            continue
        begin_ns, end_ns = span
        copied.append((each.tensor, isinstance(each, SwapOut), begin_ns, end_ns))
        assert begin_ns >= ends_ns.get(each.trigger_op, 0) + each.delta_ns
        assert begin_ns < end_ns or isinstance(each, SwapOut)
    timeline = [(copy.tensor, copy.to_host, copy.begin_ns, copy.end_ns) for copy in made.timeline.copies]
    assert sorted(copied) == sorted(timeline)
    tensors = planned_graph(graph, made.plan).tensors
    assert sum(tensors[tensor].nbytes for tensor, out, begin, end in copied if out and begin < end) == sum(
        tensors[copy.tensor].nbytes for copy in made.timeline.swap_outs
    )
    event(f"{min(len(copied), 3)} copies or more")
