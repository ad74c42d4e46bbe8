"""The bound where tensors are away as wholes, beside plans that it must not exclude.

Each graph is one in which something unusual pays; the times are worked by hand.
"""

from dataclasses import replace

from tensile_db.graph import Phase, Role, StepGraph
from tensile_db.scheduler.bound.time_bound import lower_bound_time_ns
from tests.graphs.hand_made import device_of, graph_of

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
ACTIVATION, PARAMETER = Role.ACTIVATION, Role.PARAMETER
#: Tensors of no bytes keep ops in order.
NOTHING = (0, ACTIVATION)


def _with_unread(graph, op, tensor):
    ops = [replace(each, unread=(tensor,)) if each.id == op else each for each in graph.ops]
    return StepGraph(tensors=graph.tensors, ops=tuple(ops))


def test_what_is_made_again_may_be_copied_to_the_host_before_it_is_shut_out_once_more():
    graph = graph_of(
        [(600, ACTIVATION), (1000, ACTIVATION), (1000, ACTIVATION), (600, PARAMETER), *[NOTHING] * 6],
        [
            ("make", FORWARD, [], [0, 4], True),
            ("large", FORWARD, [4], [1, 5], False),
            ("read", FORWARD, [3, 5], [6], False),
            ("long", FORWARD, [6], [7], False),
            ("large", FORWARD, [7], [2, 8], False),
            ("long", FORWARD, [8], [9], False),
            ("use", BACKWARD, [0, 9], [], False),
        ],
    )
    latencies_ns = [500, 1, 1, 1000, 1, 1000, 1]
    # 0 is made again while `read` waits for the parameter, leaves behind `long`, and is back behind the next.
    assert lower_bound_time_ns(graph, latencies_ns, device_of(10**6), 1500) == 3104


def test_what_is_made_again_and_copied_then_leaves_without_a_copy_later():
    graph = graph_of(
        [(600, ACTIVATION), (1000, ACTIVATION), (1000, ACTIVATION), (600, PARAMETER), *[NOTHING] * 8],
        [
            ("make", FORWARD, [], [0, 4], True),
            ("large", FORWARD, [4], [1, 5], False),
            ("read", FORWARD, [3, 5], [6], False),
            ("long", FORWARD, [6], [7], False),
            ("long", FORWARD, [7], [8], False),
            ("use", BACKWARD, [0, 8], [9], False),
            ("large", BACKWARD, [9], [2, 10], False),
            ("long", BACKWARD, [10], [11], False),
            ("use", BACKWARD, [0, 11], [], False),
        ],
    )
    latencies_ns = [500, 1, 1, 1000, 1000, 1, 1, 1000, 1]
    assert lower_bound_time_ns(graph, latencies_ns, device_of(10**6), 1500) <= 4105


def test_a_shape_may_be_read_before_the_ops_that_eager_runs_before_it():
    graph = graph_of(
        [(1000, ACTIVATION), (1000, ACTIVATION), *[NOTHING] * 2],
        [
            ("make", FORWARD, [], [0], False),
            ("large", FORWARD, [], [1, 2], False),
            ("overwrite", FORWARD, [2], [0], False),
            ("shape", FORWARD, [0], [3], False),
            ("use", BACKWARD, [0, 3], [], False),
        ],
    )
    graph, order = _with_unread(graph, 3, 0), (0, 3, 1, 2, 4)
    # What `make` made is freed after its shape was read, for it is overwritten unread.
    assert lower_bound_time_ns(graph, [100] * 5, device_of(10**6), 1500, order=order) == 500


def test_an_input_of_which_only_the_shape_matters_need_not_have_its_last_value():
    graph = graph_of(
        [(600, ACTIVATION), (600, ACTIVATION), (1000, ACTIVATION), *[NOTHING] * 3],
        [
            ("first", FORWARD, [], [0], True),
            ("in place", FORWARD, [0], [0, 3], True),
            ("second", FORWARD, [0, 3], [1, 4], True),
            ("large", FORWARD, [4], [2, 5], False),
            ("use", BACKWARD, [1, 5], [], False),
        ],
    )
    latencies_ns, device = [100, 1000, 100, 1, 1], device_of(10**6, bytes_per_s=10**6)
    # `first` and `second` run again; with the value, `in place` would have to.
    plan_ns = sum(latencies_ns) + 200
    assert lower_bound_time_ns(_with_unread(graph, 2, 0), latencies_ns, device, 1500) <= plan_ns
    # Next to nothing is copied.
    assert plan_ns + 995 < lower_bound_time_ns(graph, latencies_ns, device, 1500) <= plan_ns + 1000


def test_an_input_may_come_once_more_by_a_copy():
    graph = graph_of(
        [(600, ACTIVATION), (600, ACTIVATION), (1000, ACTIVATION), *[NOTHING] * 3],
        [
            ("load", FORWARD, [], [0], False),
            ("make", FORWARD, [0], [1], True),
            ("read", FORWARD, [1], [3], False),
            ("large", FORWARD, [3], [2, 4], False),
            ("long", FORWARD, [4], [5], False),
            ("use", BACKWARD, [1, 5], [], False),
        ],
    )
    # 0 can only be copied: behind `long`, where 1 could come back, too, if it had left.
    latencies_ns, device = [10, 100, 1, 1, 1000, 1], device_of(10**6)
    assert lower_bound_time_ns(graph, latencies_ns, device, 1500) == sum(latencies_ns) + 100


def test_state_that_is_updated_off_the_spine_may_leave_at_any_time_after_that():
    graph = graph_of(
        [(100, PARAMETER), (100, PARAMETER), (850, ACTIVATION), *[NOTHING] * 5],
        [
            ("first", FORWARD, [], [3], False),
            ("middle", FORWARD, [3], [4], False),
            ("update", FORWARD, [0, 3], [0, 5], False),
            ("update", FORWARD, [1, 3], [1, 6], False),
            ("long", FORWARD, [4, 5, 6], [7], False),
            ("large", FORWARD, [7], [2], False),
        ],
    )
    latencies_ns = [1000, 20, 10, 10, 1000, 10]
    assert lower_bound_time_ns(graph, latencies_ns, device_of(10**6), 950) == sum(latencies_ns)


def test_a_shape_may_be_read_before_a_write_off_the_spine():
    graph = graph_of(
        [(600, PARAMETER), (1000, ACTIVATION), *[NOTHING] * 5],
        [
            ("first", FORWARD, [], [2], False),
            ("write", FORWARD, [0], [0], False),
            ("shape", FORWARD, [0, 2], [3], False),
            ("large", FORWARD, [3], [1, 4], False),
            ("long", FORWARD, [4], [5], False),
            ("last", FORWARD, [5], [6], False),
        ],
    )
    latencies_ns = [10, 10, 10, 10, 10_000, 10_000]
    # `write` may run after `large`, and its result leave behind `last`.
    bound_ns = lower_bound_time_ns(_with_unread(graph, 2, 0), latencies_ns, device_of(10**6), 1000)
    assert bound_ns == sum(latencies_ns)
