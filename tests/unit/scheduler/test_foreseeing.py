"""What plans of a graph begin with is worked out ahead, and changes none of them."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler import verify
from tensile_db.scheduler.analysis import accesses
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing import order, sources
from tensile_db.scheduler.foreseeing import foresee
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.packing import packed_graph
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.packing import worth_packing
from tensile_db.scheduler.request import JobRequest, SplitsWithin
from tests.examples import examples
from tests.graphs.random_graphs import devices, latencies_for, training_graphs
from tests.steps.captured_steps import captured_step

DEVICE = machine("sim:a6000")


@given(st.data())
@examples(60)
def test_plans_of_a_graph_that_was_foreseen_are_those_of_one_that_was_not(data):
    graph, device = data.draw(training_graphs()), data.draw(devices())
    budget_nbytes = data.draw(st.integers(lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)))
    device = replace(device, memory_nbytes=budget_nbytes)
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)), at_once=True)
    (made,) = plan_jobs([job], device)
    # A copy is another graph to what is kept of graphs.
    foreseen = replace(job, graph=replace(graph))
    foresee(foreseen.graph)
    (again,) = plan_jobs([foreseen], device)
    assert again.plan == made.plan
    event("packed" if made.plan.packed else "as it was captured")


@pytest.fixture
def nothing_is_worked_out_anew(monkeypatch):
    """Call it: from then on, what takes long of a new graph fails."""

    def refuse(*_):
        raise AssertionError("it was foreseen")

    def arm():
        for place, name in (
            (packed_graph._Packer, "run"),
            (order, "_place"),
            (accesses, "_Touches"),
            (sources, "_passing"),
            (verify, "_values_read"),
        ):
            monkeypatch.setattr(place, name, refuse)

    return arm


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_a_first_plan_of_a_graph_that_was_foreseen_works_out_nothing_of_it(name, nothing_is_worked_out_anew):
    graph = captured_step(name, batch=32, side=96)
    half = replace(DEVICE, memory_nbytes=vanilla.peak_nbytes(graph) // 2)
    job = JobRequest(
        job_id=1,
        graph=graph,
        latencies_ns=predict_latencies_ns(graph, DEVICE),
        at_once=True,
        # Looked for by another process than the one that plans.
        found_splits=SplitsWithin(limit_nbytes=half.memory_nbytes, splits=()),
    )
    foresee(graph)
    nothing_is_worked_out_anew()
    (made,) = plan_jobs([job], half)
    assert made.plan.packed == worth_packing(graph)
    assert made.budget_nbytes <= half.memory_nbytes
