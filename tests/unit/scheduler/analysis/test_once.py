"""What is known of a graph is asked once, and never of another one."""

import gc
import weakref
from dataclasses import replace

from tensile_db.scheduler.analysis.accesses import access_table
from tensile_db.scheduler.analysis.once import forget_all, once_for_each
from tensile_db.scheduler.policies.in_parts import find_splits
from tests.steps.small_step import small_step


def test_an_analysis_is_made_once_for_each_thing_equal_ones_apart():
    graph = small_step().graph
    asked = []
    analysis = once_for_each(lambda one: asked.append(one) or len(asked))
    assert [analysis(graph), analysis(graph)] == [1, 1]
    assert analysis(replace(graph)) == 2


def test_what_is_forgotten_is_worked_out_again_and_keeps_no_graph():
    graph = small_step().graph
    found = find_splits(graph, 10**6)
    gone = weakref.ref(graph)
    forget_all()
    assert find_splits(graph, 10**6) is not found
    forget_all()
    del graph
    gc.collect()
    assert gone() is None


def test_accesses_are_of_the_order_asked_for():
    graph = small_step().graph
    eager = tuple(op.id for op in graph.ops)
    # The updates of the two weights do not depend on each other.
    other = (*eager[:-3], eager[-2], eager[-3], eager[-1])
    assert access_table(graph).order == eager
    table = access_table(graph, other)
    assert table.order == other
    for tensor, positions in enumerate(table.positions):
        touching = [
            place for place, op in enumerate(other) if tensor in {*graph.ops[op].reads, *graph.ops[op].writes}
        ]
        assert list(positions) == touching
