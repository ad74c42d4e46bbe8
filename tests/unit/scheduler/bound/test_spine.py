"""Spines: the chain that every order keeps, and where the other ops may lie."""

from tensile_db.graph import Phase, Role
from tensile_db.scheduler.bound.spine import fixed_spine, longest_spine, predecessors
from tests.graphs.hand_made import chain, graph_of


def _two_branches():
    """Return a step in which ops 1 and 2 do not depend on each other; op 4 updates what 1 reads."""
    forward, update = Phase.FORWARD, Phase.OPTIMIZER
    return graph_of(
        [(8, Role.PARAMETER), (8, Role.ACTIVATION), (8, Role.ACTIVATION), (8, Role.ACTIVATION)],
        [
            ("tensile.load_batch", forward, [], [1], False),
            ("left", forward, [0, 1], [2], True),
            ("right", forward, [1], [3], True),
            ("join", forward, [2, 3], [3], True),
            ("update", update, [0], [0], False),
        ],
    )


def test_a_write_comes_after_the_last_write_and_the_reads_of_what_it_overwrites():
    assert predecessors(_two_branches()) == ((), (0,), (0,), (1, 2), (1,))


def test_the_spine_takes_the_slower_branch_and_the_other_lies_beside_it():
    spine = longest_spine(_two_branches(), [1, 1, 5, 1, 1])
    assert spine.ops == (0, 2, 3)
    assert spine.floor == (0, 0, 1, 2, 0)
    assert spine.ceiling == (0, 2, 1, 2, 3)
    assert [spine.has(op) for op in range(5)] == [True, False, True, True, False]


def test_ops_may_have_begun_from_their_floor_on_and_are_over_by_their_ceiling():
    spine = longest_spine(_two_branches(), [1, 1, 5, 1, 1])
    assert [spine.begun_from([op]) for op in range(5)] == [0, 2, 2, 4, 2]
    assert [spine.over_at([op]) for op in range(5)] == [2, 4, 4, 6, 6]
    # Of several, the first to begin and the last to be over.
    assert (spine.begun_from([3, 1]), spine.over_at([4, 1])) == (2, 6)


def _orders(before, order=()):
    """Yield all orders in which each op comes after those before it."""
    if len(order) == len(before):
        yield order
    for op in range(len(before)):
        if op not in order and set(before[op]) <= set(order):
            yield from _orders(before, (*order, op))


def test_every_order_that_keeps_the_dependences_keeps_to_the_spine():
    graph = chain()
    before, spine = predecessors(graph), longest_spine(graph, [1] * len(graph.ops))
    assert spine.ops == (0, 1, 2, 4, 5, 6, 8)
    orders = list(_orders(before))
    assert len(orders) == 63
    end = len(spine.ops)
    for order in orders:
        places = [-1, *(order.index(op) for op in spine.ops), len(order)]
        assert places == sorted(places)
        for op in order:
            floor, ceiling = spine.floor[op], spine.ceiling[op]
            assert places[floor + 1] <= order.index(op) <= places[min(ceiling, end) + 1]


def test_a_fixed_order_is_all_spine():
    spine = fixed_spine((0, 2, 1, 3, 4))
    assert spine.floor == spine.ceiling == (0, 2, 1, 3, 4)
