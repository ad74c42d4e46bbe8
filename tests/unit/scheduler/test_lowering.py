"""Programs of plans that differ by the delays of their copies alone."""

from dataclasses import replace

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from tensile_db.errors import TensileError
from tensile_db.scheduler import lowering
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import SWAPS
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tests.examples import examples
from tests.graphs.hand_made import chain, device_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs


def _with_other_delays(plan, delays_ns):
    return replace(
        plan,
        events=tuple(
            replace(each, delta_ns=delays_ns[index % len(delays_ns)]) if isinstance(each, SWAPS) else each
            for index, each in enumerate(plan.events)
        ),
    )


@pytest.mark.slow
@given(st.data())
@examples(60)
def test_a_program_with_other_delays_is_that_of_the_plan_with_them(data):
    graph = data.draw(training_graphs())
    budget_nbytes = data.draw(st.integers(lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)))
    policy = data.draw(st.sampled_from(["auto", "tensile", "superneurons"]))
    job = JobRequest(
        job_id=1,
        graph=graph,
        latencies_ns=data.draw(latencies_for(graph)),
        policy=policy,
        memory_limit_nbytes=budget_nbytes,
    )
    try:
        (made,) = plan_jobs([job], data.draw(devices()))
    except TensileError:
        event("has no plan")
        return
    assume(any(isinstance(each, SWAPS) for each in made.plan.events))
    planned = planned_graph(graph, made.plan)
    other = _with_other_delays(made.plan, data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=20)))
    event("copies are triggered by the iteration's start" if _begins(made.plan) else "by ops alone")
    assert lower(planned, made.plan) == made.program
    # Of a copy of the graph no program is known.
    assert lower(planned, other) == lower(replace(planned), other)


def _begins(plan):
    return any(isinstance(each, SWAPS) and each.trigger_op is None for each in plan.events)


def test_it_is_verified_once(monkeypatch):
    graph, plan = _swapping()
    lower(graph, plan)
    monkeypatch.setattr(lowering, "verify", None)
    other = _with_other_delays(plan, [7])
    assert lower(graph, other).instructions != lower(graph, plan).instructions
    with pytest.raises(TypeError):
        lower(replace(graph), other)


def _swapping():
    """Return a step of which a tensor is away over a large op, and its plan."""
    graph = chain(state_nbytes=30)
    budget_nbytes = lower_bound_peak_nbytes(graph)
    job = JobRequest(
        job_id=1,
        graph=graph,
        latencies_ns=[100] * len(graph.ops),
        policy="auto",
        memory_limit_nbytes=budget_nbytes,
    )
    (made,) = plan_jobs([job], device_of(10**6))
    assert any(isinstance(each, SWAPS) for each in made.plan.events)
    return planned_graph(graph, made.plan), made.plan
