"""The order in which parameters are updated early: dependences kept, gradients short-lived."""

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Phase, Role, StepGraph
from tensile_db.scheduler.choosing.order import EarlyUpdates
from tests.examples import examples
from tests.graphs.hand_made import graph_of
from tests.graphs.random_graphs import latencies_for, training_graphs
from tests.steps.small_step import GRELU, GW1, GW2, M1, REPORT, W1, W2, small_step


def _dependences(graph):
    """Return the pairs of ops that must keep their order: one of them writes what both take the value of."""
    pairs = set()
    for later in graph.ops:
        for earlier in graph.ops[: later.id]:
            touched = _values(earlier) & _values(later)
            if touched & {*earlier.writes, *later.writes}:
                pairs.add((earlier.id, later.id))
    return pairs


def _values(op):
    return {*op.reads, *op.writes} - {*op.unread}


@given(st.data())
@examples(100)
def test_an_early_order_keeps_every_dependence(data):
    graph = data.draw(training_graphs())
    rate = data.draw(st.none() | st.integers(10**6, 10**9))
    least_nbytes = data.draw(st.none() | st.integers(0, 200))
    updates = EarlyUpdates(graph, data.draw(latencies_for(graph)), least_nbytes)
    order = updates.order(rate, data.draw(st.floats(0, 1)))
    place = {op: index for index, op in enumerate(order)}
    assert sorted(order) == list(range(len(graph.ops)))
    assert all(place[earlier] < place[later] for earlier, later in _dependences(graph))
    rest = [op for op in order if graph.ops[op].phase is not Phase.OPTIMIZER]
    assert updates.waiting or rest == sorted(rest)
    event(f"gradients wait: {rest != sorted(rest)}")


def test_a_parameter_is_updated_right_after_the_last_op_that_needs_it():
    graph = small_step().graph
    order = EarlyUpdates(graph, [1000] * len(graph.ops)).order()
    place = {op: index for index, op in enumerate(order)}
    # The second layer's weight is read once more by the op that makes its input's gradient.
    assert place[W2] < place[GRELU] < place[GW1]
    assert place[GW2] < place[W2]
    assert order[-1] == REPORT
    assert place[GW1] < place[M1] < place[W1]


def test_at_a_rate_updates_wait_until_the_state_of_those_before_can_have_gone():
    graph = small_step().graph
    slow = EarlyUpdates(graph, [1000] * len(graph.ops)).order(1)
    assert slow[-2:] == (W1, REPORT)


def test_a_gradient_that_only_its_update_needs_waits_where_it_is_larger_than_what_it_is_made_of():
    graph = small_step(rows=1).graph
    latencies_ns = [1000] * len(graph.ops)
    waited = EarlyUpdates(graph, latencies_ns, 0).order(late=1.0)
    assert waited.index(GRELU) < waited.index(GW2) < waited.index(W2)
    without_large_ones = EarlyUpdates(graph, latencies_ns, 10**9).order(late=1.0)
    assert without_large_ones == EarlyUpdates(graph, latencies_ns).order()


def test_each_part_of_a_gradient_is_made_when_its_part_of_the_update_takes_it():
    images, weight, state, parts, loss = 0, 1, (2, 3), (6, 7), 8
    makers, updates = (4, 5), (10, 11)
    graph = graph_of(
        [
            (10, Role.INPUT),
            (1000, Role.PARAMETER),
            *[(500, Role.OPTIMIZER_STATE)] * 2,
            (10, Role.ACTIVATION),
            (10, Role.GRADIENT),
            *[(500, Role.GRADIENT)] * 2,
            (10, Role.GRADIENT),
        ],
        [
            ("tensile.load_batch", Phase.FORWARD, [], [images], False),
            ("layer", Phase.FORWARD, [images, weight], [4], True),
            ("loss_backward", Phase.BACKWARD, [4], [5], False),
            ("input_backward", Phase.BACKWARD, [5, weight], [loss], False),
            *[("weight_backward", Phase.BACKWARD, [images, 5, weight], [part], False) for part in parts],
            *[("layer_backward", Phase.BACKWARD, [loss], [loss], False)] * 4,
            *[
                ("update", Phase.OPTIMIZER, [weight, own, part], [weight, own], False)
                for own, part in zip(state, parts, strict=True)
            ],
            ("tensile.report", Phase.OPTIMIZER, [loss], [], False),
        ],
    )
    unread = dict.fromkeys(makers, (weight,))
    ops = tuple(replace(op, unread=unread.get(op.id, ())) for op in graph.ops)
    graph = StepGraph(tensors=graph.tensors, ops=ops)
    # Together they are as large as is asked for.
    orders = EarlyUpdates(graph, [1000] * len(graph.ops), 1000)
    one_by_one = [makers[0], updates[0], makers[1], updates[1]]
    soon = EarlyUpdates(graph, [1000] * len(graph.ops)).order()
    assert list(soon[4:8]) == one_by_one
    late = orders.order(late=0.25)
    assert [op for op in late if op in one_by_one] == one_by_one
    assert late.index(makers[0]) > late.index(6)
    apart = orders.order(500 * 10**9 // 2000, late=0.25)
    assert apart.index(makers[1]) == apart.index(updates[0]) + 3
    assert apart.index(updates[1]) == apart.index(makers[1]) + 1
    assert EarlyUpdates(graph, [1000] * len(graph.ops), 1001).order(late=0.25) == soon
    # Of makers that take the weight's value none can come after an update.
    by_value = StepGraph(tensors=graph.tensors, ops=tuple(replace(op, unread=()) for op in graph.ops))
    late = EarlyUpdates(by_value, [1000] * len(graph.ops), 1000).order(late=0.25)
    assert [op for op in late if op in one_by_one] == [*makers, *updates]


def test_a_gradient_waits_and_the_parts_of_its_update_are_as_far_apart_as_the_link_needs():
    weight, state, gradient, loss = 1, (2, 3), 6, 7
    make_gradient, update = 3, (9, 10)
    graph = graph_of(
        [
            (10, Role.INPUT),
            (1000, Role.PARAMETER),
            (500, Role.OPTIMIZER_STATE),
            (500, Role.OPTIMIZER_STATE),
            (10, Role.ACTIVATION),
            (10, Role.GRADIENT),
            (1000, Role.GRADIENT),
            (10, Role.GRADIENT),
        ],
        [
            ("tensile.load_batch", Phase.FORWARD, [], [0], False),
            ("layer", Phase.FORWARD, [0, weight], [4], True),
            ("loss_backward", Phase.BACKWARD, [4], [5], False),
            ("weight_backward", Phase.BACKWARD, [0, 5], [gradient], False),
            ("layer_backward", Phase.BACKWARD, [4], [loss], False),
            *[("layer_backward", Phase.BACKWARD, [loss], [loss], False)] * 4,
            *[("update", Phase.OPTIMIZER, [weight, part, gradient], [weight, part], False) for part in state],
            ("tensile.report", Phase.OPTIMIZER, [loss], [], False),
        ],
    )
    updates = EarlyUpdates(graph, [1000] * len(graph.ops), 1000)
    late = updates.order(late=0.25)
    assert [late.index(op) for op in update] == [late.index(make_gradient) + 1, late.index(make_gradient) + 2]
    assert late.index(make_gradient) > late.index(4)
    # A part's state takes as long as two ops.
    apart = updates.order(500 * 10**9 // 2000, late=0.25)
    assert apart.index(make_gradient) == late.index(make_gradient)
    assert [apart.index(op) for op in update] == [late.index(update[0]), late.index(update[0]) + 3]
