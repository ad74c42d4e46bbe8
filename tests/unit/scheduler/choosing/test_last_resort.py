"""Both ways to meet a budget by swaps that may stall are planned, and the faster plan counts."""

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Phase, Role
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.last_resort import within_budget
from tensile_db.scheduler.policies import capuchin, tensile, tsplit, vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.timeline import settle, simulate
from tests.examples import examples
from tests.graphs.hand_made import device_of, graph_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs


def _maps(*nbytes):
    """Return a step whose forward ops make one feature map each, read backwards in the reverse order."""
    forward = [("make", Phase.FORWARD, (), (layer,), False) for layer in range(len(nbytes))]
    backward = [("read", Phase.BACKWARD, (layer,), (), False) for layer in reversed(range(len(nbytes)))]
    return graph_of([(each, Role.ACTIVATION) for each in nbytes], [*forward, *backward])


def _state(residency):
    footprint = residency.footprint.tolist()
    held = [list(residency.held_at(position)) for position in range(len(footprint))]
    return footprint, held, {tensor: list(away) for tensor, away in residency.absences.items() if away}


def test_where_the_budget_is_met_already_nothing_leaves():
    graph = _maps(10, 10)
    residency = Residency(graph, [1] * 4)
    assert within_budget(residency, Link(device_of(20)), 20) == [residency]
    assert not residency.swaps()


def test_one_way_looks_at_stalls_and_the_other_at_distance():
    # Beside the last map one more must leave: of the first copies stall 58 + 57 ns, of the second 9 + 8.
    residency = Residency(_maps(60, 10, 10, 30), [1] * 8)
    first, second = within_budget(residency, Link(device_of(100)), 100)
    assert [swap.tensor for swap in first.swaps()] == [1]
    assert [swap.tensor for swap in second.swaps()] == [0]


def test_one_way_alone_where_no_more_is_asked_for():
    residency = Residency(_maps(60, 10, 10, 30), [1] * 8)
    assert within_budget(residency, Link(device_of(100)), 100, both=False) == [residency]


def test_an_op_that_needs_more_itself_leaves_nothing_to_choose():
    residency = Residency(_maps(10, 10), [1] * 4)
    assert within_budget(residency, Link(device_of(9)), 9) == []


@given(st.data())
@examples(60)
def test_what_is_done_to_a_copy_is_not_done_to_the_original(data):
    graph = data.draw(training_graphs())
    original = Residency(graph, data.draw(latencies_for(graph)))
    budget = data.draw(st.integers(lower_bound_peak_nbytes(graph), max(1, vanilla.peak_nbytes(graph))))
    link = Link(data.draw(devices()))
    within_budget(original, link, budget)
    before, other = _state(original), original.copy()
    assert _state(other) == before
    for swap in other.swaps():
        other.remove(swap)
    other.hold(graph.ops[0].writes[0] if graph.ops[0].writes else graph.ops[0].reads[0], len(graph.ops) - 1)
    other.need(graph.ops[0].reads[0] if graph.ops[0].reads else graph.ops[0].writes[0], 0)
    assert _state(original) == before
    assert (original.needed, original.held_until) == ({}, {})


@pytest.mark.slow
@given(st.data())
@examples(60)
def test_a_published_policy_is_never_slower_than_by_the_first_way_alone(data):
    graph = data.draw(training_graphs())
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)))
    device = data.draw(devices())
    policy = data.draw(st.sampled_from([tensile, capuchin, tsplit]))
    least = capuchin.least_nbytes(graph) if policy is capuchin else lower_bound_peak_nbytes(graph)
    budget = data.draw(st.integers(least, max(least, vanilla.peak_nbytes(graph))))

    def period_ns(ways):
        def only(*arguments, **options):
            return [way for number, way in enumerate(within_budget(*arguments, **options)) if number in ways]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(policy, "within_budget", only)
            (plan,) = policy.plan([job], device, budget)
        assert plan.splits == ()
        settled = settle(graph, job.latencies_ns, plan, device)
        return simulate(graph, job.latencies_ns, settled, device).period_ns

    first, both = period_ns({0}), period_ns({0, 1})
    assert both <= first
    event(f"{policy.__name__} {'faster' if both < first else 'as fast'}")
