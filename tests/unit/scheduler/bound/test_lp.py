"""The lower bound on time: worked by hand, below the best of all plans, below every policy's plans."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.bench.exact import layers
from tensile_db.errors import DoesNotFit, TensileError
from tensile_db.graph import Phase, Role
from tensile_db.scheduler.bound.exact import best_period_ns
from tensile_db.scheduler.bound.time_bound import lower_bound_time_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes, time_of_ops_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.packing.packed_graph import packable
from tensile_db.scheduler.policies import POLICIES, vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import captured_ops
from tensile_db.scheduler.timeline import simulate
from tests.examples import examples, one_in
from tests.graphs.hand_made import device_of, graph_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

FORWARD, BACKWARD, UPDATE = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER


def _held_over_a_large_op(*, recomputable: bool, ordered: bool = True):
    """Return a step that holds tensor 0 over an op which writes tensor 1, 1,000 bytes each.

    Tensors of no bytes keep the ops in order.
    """
    rows = [(1000, Role.ACTIVATION), (1000, Role.ACTIVATION), (0, Role.ACTIVATION), (0, Role.ACTIVATION)]
    first, second = ([2], [3]) if ordered else ([], [])
    return graph_of(
        rows,
        [
            ("make", FORWARD, [], [0, *first], recomputable),
            ("large", FORWARD, first, [1, *second], False),
            ("use", BACKWARD, [0, *second], [], False),
        ],
    )


def _state_beside_a_large_op(*, updated: bool):
    """Return a step that needs 1,000 bytes of state after an op which writes as many."""
    rows = [(1000, Role.OPTIMIZER_STATE), (1000, Role.ACTIVATION), (0, Role.ACTIVATION)]
    return graph_of(
        rows,
        [
            ("large", FORWARD, [], [1, 2], False),
            ("update", UPDATE, [0, 2], [0] if updated else [], False),
        ],
    )


@pytest.mark.parametrize(
    ("graph", "latencies_ns", "budget_nbytes", "want_ns"),
    [
        # 500 bytes are too many, but the tensor leaves as a whole: 1,000 ns out before the large op, 1,000 ns
        # in after it.
        (_held_over_a_large_op(recomputable=False), [100, 100, 100], 1500, 2300),
        (_held_over_a_large_op(recomputable=False), [100, 100, 100], 1000, 2300),
        # It is made a second time as a whole, too.
        (_held_over_a_large_op(recomputable=True), [100, 100, 100], 1500, 400),
        # Nothing holds the large op there: it runs first.
        (_held_over_a_large_op(recomputable=False, ordered=False), [100, 100, 100], 1500, 300),
        # 1,000 ns in between the two ops; 1,000 ns out between the update and the next iteration's large op.
        (_state_beside_a_large_op(updated=True), [100, 100], 1500, 2200),
        # The host's copy stays valid: no copy out.
        (_state_beside_a_large_op(updated=False), [100, 100], 1500, 1200),
    ],
)
def test_worked_by_hand(graph, latencies_ns, budget_nbytes, want_ns):
    assert lower_bound_time_ns(graph, latencies_ns, device_of(10**6), budget_nbytes) == want_ns


def test_a_copy_out_and_one_in_share_a_simplex_link():
    graph = graph_of(
        [(1000, Role.PARAMETER), (1000, Role.PARAMETER), (0, Role.ACTIVATION)],
        [("first", UPDATE, [0], [0, 2], False), ("second", UPDATE, [1, 2], [1], False)],
    )
    # Each is away while the other is updated: before each op, one leaves while the other comes.
    duplex, simplex = device_of(10**6), device_of(10**6, duplex=False)
    assert lower_bound_time_ns(graph, [100, 100], duplex, 1000) == 2200
    assert lower_bound_time_ns(graph, [100, 100], simplex, 1000) == 4200


def test_an_order_that_is_given_is_kept():
    graph = _held_over_a_large_op(recomputable=False, ordered=False)
    device = device_of(10**6)
    assert lower_bound_time_ns(graph, [100, 100, 100], device, 1500, order=(0, 1, 2)) == 2300
    assert lower_bound_time_ns(graph, [100, 100, 100], device, 1500, order=(1, 0, 2)) == 300


def test_a_stretch_in_which_memory_is_ample_pays_for_one_in_which_it_is_not():
    graph = graph_of(
        [(1000, Role.PARAMETER), (1000, Role.ACTIVATION), *[(0, Role.ACTIVATION)] * 6],
        [
            ("first", FORWARD, [], [2], False),
            ("read", FORWARD, [0, 2], [3], False),
            ("large", FORWARD, [3], [1, 4], False),
            ("wait", BACKWARD, [4], [5], False),
            ("update", UPDATE, [0, 5], [0, 6], False),
            ("long", UPDATE, [6], [7], False),
        ],
    )
    latencies_ns, device = [1000, 100, 100, 1000, 100, 1000], device_of(10**6)
    # Out behind `long`, in behind `first`, away without a copy during `large`, in behind `wait`.
    for order in (None, range(6)):
        assert lower_bound_time_ns(graph, latencies_ns, device, 1500, order=order) == sum(latencies_ns)


def test_what_is_made_again_needs_its_inputs_made_again_first():
    graph = graph_of(
        [
            (600, Role.ACTIVATION),
            (600, Role.ACTIVATION),
            (1000, Role.ACTIVATION),
            *[(0, Role.ACTIVATION)] * 3,
        ],
        [
            ("first", FORWARD, [], [0], True),
            ("second", FORWARD, [0], [1], True),
            ("read", FORWARD, [1], [3], False),
            ("large", FORWARD, [3], [2, 4], False),
            ("use", BACKWARD, [1, 4], [], False),
        ],
    )
    latencies_ns, device = [100, 100, 1, 1, 1], device_of(10**6, bytes_per_s=10**6)
    # Neither 0 nor 1 can be there during `large`: both run again, for copies take 1,000 ns a byte.
    assert lower_bound_time_ns(graph, latencies_ns, device, 1500) == sum(latencies_ns) + 200
    # With 100 bytes more 1 stays.
    assert lower_bound_time_ns(graph, latencies_ns, device, 1600) == sum(latencies_ns)
    assert best_period_ns(graph, latencies_ns, device, 1500) == sum(latencies_ns) + 200


def test_a_budget_that_no_plan_meets_is_refused():
    with pytest.raises(DoesNotFit) as refusal:
        lower_bound_time_ns(_held_over_a_large_op(recomputable=True), [1, 1, 1], device_of(10**6), 999)
    assert refusal.value.needed_nbytes == 1000


@pytest.mark.parametrize(
    ("nbytes", "latencies_ns", "budget_nbytes", "want_ns"),
    [
        ((40, 60, 50), [10, 20, 30, 10, 60, 40], 220, (210, 210)),
        ((40, 60, 50), [10, 20, 30, 10, 60, 40], 250, (210, 210)),
        ((70, 30, 80), [10, 60, 30, 10, 60, 40], 260, (310, 310)),
        ((90, 40, 20, 60), [30, 60, 10, 40, 20, 60, 40, 80], 190, (530, 550)),
    ],
)
def test_beside_the_best_of_all_plans(nbytes, latencies_ns, budget_nbytes, want_ns):
    graph, device = layers(nbytes), device_of(10**6)
    bound_ns = lower_bound_time_ns(graph, latencies_ns, device, budget_nbytes)
    assert (bound_ns, best_period_ns(graph, latencies_ns, device, budget_nbytes)) == want_ns


@given(st.data())
@examples(50)
def test_never_above_the_best_of_all_plans(data):
    size = st.integers(1, 60)
    graph = layers([data.draw(size) for _ in range(3)])
    latencies_ns = data.draw(latencies_for(graph))
    device = data.draw(devices())
    least = lower_bound_peak_nbytes(graph)
    eager = simulate(graph, latencies_ns, vanilla.plan_one(graph), device)
    budget_nbytes = data.draw(st.integers(least, eager.peak_nbytes))
    best_ns = best_period_ns(graph, latencies_ns, device, budget_nbytes)
    event("a plan stalls or runs ops again" if best_ns and best_ns > sum(latencies_ns) else "fits")
    assert best_ns is None or lower_bound_time_ns(graph, latencies_ns, device, budget_nbytes) <= best_ns


# vDNN wants convolutions, which random graphs have none of.
@pytest.mark.parametrize("policy", one_in(3, [name for name in POLICIES if not name.startswith("vdnn")]))
@given(data=st.data())
@examples(40)
def test_no_policys_plan_undercuts_the_bound_of_its_own_peak(policy, data):
    graph = data.draw(training_graphs())
    latencies_ns, device = data.draw(latencies_for(graph)), data.draw(devices())
    eager = simulate(graph, latencies_ns, vanilla.plan_one(graph), device)
    limit = data.draw(st.none() | st.integers(lower_bound_peak_nbytes(graph), eager.peak_nbytes))
    job = JobRequest(
        job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy, memory_limit_nbytes=limit
    )
    try:
        (made,) = plan_jobs([job], replace(device, memory_nbytes=10 * eager.peak_nbytes))
    except TensileError:
        event("has no plan")
        return
    event("costs time" if made.prediction.time_ns > sum(latencies_ns) else "costs none")
    # The timeline's own peak, which is never more than the guaranteed one.
    peak_nbytes = made.prediction.peak_nbytes
    free_ns = lower_bound_time_ns(graph, latencies_ns, device, peak_nbytes)
    captured = captured_ops(graph, made.plan.rewriting)
    order = [captured[op] for op in made.plan.order if captured[op] is not None]
    fixed_ns = lower_bound_time_ns(graph, latencies_ns, device, peak_nbytes, order=order)
    assert free_ns <= made.prediction.time_ns
    assert fixed_ns <= made.prediction.time_ns


@given(st.data())
@examples(60)
def test_more_memory_is_hardly_bounded_higher_and_enough_costs_nothing(data):
    graph = data.draw(training_graphs())
    latencies_ns, device = data.draw(latencies_for(graph)), data.draw(devices())
    least = lower_bound_peak_nbytes(graph)
    eager = simulate(graph, latencies_ns, vanilla.plan_one(graph), device)
    smaller = data.draw(st.integers(least, eager.peak_nbytes))
    larger = data.draw(st.integers(smaller, eager.peak_nbytes))
    at_smaller_ns, at_larger_ns, at_eager_ns = (
        lower_bound_time_ns(graph, latencies_ns, device, budget)
        for budget in (smaller, larger, eager.peak_nbytes)
    )
    # With less memory more recomputations could help, and at more places: that relaxation is a little looser.
    assert 1.05 * at_smaller_ns >= at_larger_ns >= at_eager_ns
    # Codes may save ops more time than they cost.
    ops_ns = time_of_ops_ns(latencies_ns)
    assert at_eager_ns == ops_ns or (packable(graph) and at_eager_ns < ops_ns)
    event("memory costs time" if at_smaller_ns > at_eager_ns else "memory is free")


def test_the_bound_of_a_graph_in_one_order_is_at_least_that_of_any_order():
    graph = _held_over_a_large_op(recomputable=True)
    device = device_of(10**6)
    assert lower_bound_time_ns(graph, [100, 100, 100], device, 1000) == 400
    assert lower_bound_time_ns(graph, [100, 100, 100], device, 1000, order=(0, 1, 2)) == 400
