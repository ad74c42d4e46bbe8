"""Plans written by hand that take hardly longer than the lower bound.

Each does what a bound might charge too much for.
"""

from dataclasses import replace

import pytest

from tensile_db.graph import Code, Phase, Role, StepGraph, TensorId
from tensile_db.scheduler.bound.time_bound import lower_bound_time_ns
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.packing.latencies import as_packed
from tensile_db.scheduler.plan import DeviceSpec, Plan, Recompute, Release, SwapIn, SwapOut, Wait
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.timeline import simulate_settled
from tests.graphs.hand_made import device_of, graph_of

#: Left out of `make check`.
pytestmark = pytest.mark.slow

FORWARD, BACKWARD, ACTIVATION = Phase.FORWARD, Phase.BACKWARD, Role.ACTIVATION
RELU, GRADIENT = "aten.relu.default", "aten.threshold_backward.default"
FREE = 10**12


def _graph(sizes: list[int], ops: list[tuple], moved_nbytes: int | None = None) -> StepGraph:
    """Return a graph of activations; moved_nbytes: of the op that takes signs of tensor 0, if one does."""
    graph = graph_of([(nbytes, ACTIVATION) for nbytes in sizes], ops)
    if moved_nbytes is None:
        return graph
    first, *others = graph.tensors
    signed = replace(first, dtype="float32", shape=(first.nbytes // 4,))
    return replace(
        graph,
        tensors=(signed, *others),
        ops=tuple(
            replace(op, codes=((TensorId(0), Code.SIGNS),), moved_nbytes=moved_nbytes)
            if op.target == GRADIENT
            else op
            for op in graph.ops
        ),
    )


def _with_another_code(graph: StepGraph) -> StepGraph:
    """Return the graph with the op that takes the signs of tensor 0 taking those of tensor 1, too."""
    first, second, *others = graph.tensors
    *ops, last = graph.ops
    both = replace(last, codes=((TensorId(0), Code.SIGNS), (TensorId(1), Code.SIGNS)))
    signed = replace(second, dtype=first.dtype, shape=first.shape)
    return replace(graph, tensors=(first, signed, *others), ops=(*ops, both))


def _device(*, out: int, into: int, memory: int = FREE) -> DeviceSpec:
    """Return a device with these rates, in bytes a second."""
    rates = {"d2h_bytes_per_s": out, "h2d_bytes_per_s": into, "memory_bytes_per_s": memory}
    return replace(device_of(10**7), **rates)


def _released(*after: tuple[int, int]) -> list[Release]:
    return [Release(tensor=tensor, after_op=op) for tensor, op in after]


#: What a tensor is made of is copied to the host before a large op and back after it, once.
A_SOURCE_COMES_BACK = (
    _graph(
        [1000, 3000, 4000, 0, 0],
        [
            ("source", FORWARD, [], [0], False),
            ("tensor", FORWARD, [0], [1, 3], True),
            ("large", FORWARD, [3], [2, 4], False),
            ("use", BACKWARD, [1, 4], [], False),
        ],
    ),
    [100, 100, 100, 10],
    _device(out=FREE, into=10**8),
    [
        *_released((1, 1), (2, 2), (0, 3), (1, 3), (3, 2), (4, 3)),
        SwapOut(tensor=0, trigger_op=1),
        Wait(tensor=0, before_op=2),
        SwapIn(tensor=0, trigger_op=2),
        Recompute(tensor=1, before_op=3, ops=(1,)),
    ],
)
#: The same, and its first copy to the host serves twice.
A_SOURCE_IS_ON_THE_HOST = (
    _graph(
        [1000, 3000, 4000, 4000, 0, 0, 0, 0],
        [
            ("source", FORWARD, [], [0, 4], False),
            ("large", FORWARD, [4], [2, 5], False),
            ("tensor", FORWARD, [0, 5], [1, 6], True),
            ("large", FORWARD, [6], [3, 7], False),
            ("use", BACKWARD, [1, 7], [], False),
        ],
    ),
    [100, 100, 100, 100, 10],
    _device(out=10**8, into=FREE),
    [
        *_released((4, 1), (2, 1), (1, 2), (3, 3), (0, 4), (1, 4), (6, 3), (7, 4), (5, 4)),
        SwapOut(tensor=0, trigger_op=0),
        Wait(tensor=0, before_op=1),
        SwapIn(tensor=0, trigger_op=1),
        SwapOut(tensor=0, trigger_op=2),
        Wait(tensor=0, before_op=3),
        SwapIn(tensor=0, trigger_op=3),
        Recompute(tensor=1, before_op=4, ops=(2,)),
    ],
)
#: An op runs again with a code, which takes half the time.
AGAIN_WITH_A_CODE = (
    _graph(
        [1024, 1000, 2000, 0, 0, 0],
        [
            (RELU, FORWARD, [], [0, 3], False),
            (GRADIENT, BACKWARD, [0, 3], [1, 4], True),
            ("large", BACKWARD, [4], [2, 5], False),
            ("use", BACKWARD, [1, 5], [], False),
        ],
        2024,
    ),
    [100, 1000, 100, 100],
    _device(out=10**4, into=10**4),
    [
        *_released((0, 1), (1, 2), (4, 3), (2, 3), (6, 4), (1, 4), (3, 4), (5, 4)),
        Recompute(tensor=1, before_op=4, ops=(2,)),
    ],
)
#: A code leaves while what it was made from is read by an op that takes long.
A_CODE_LEAVES_EARLY = (
    _graph(
        [1024, 2024, 0, 0, 0, 0],
        [
            (RELU, FORWARD, [], [0, 2], False),
            ("reader", FORWARD, [0, 2], [3], False),
            ("tight", FORWARD, [3], [1, 4], False),
            (GRADIENT, BACKWARD, [0, 4], [], False),
        ],
        1024,
    ),
    [100, 50_000, 100, 100],
    _device(out=10**6, into=FREE),
    [
        *_released((0, 1), (2, 1), (1, 3), (6, 4), (3, 3), (4, 4)),
        SwapOut(tensor=6, trigger_op=2),
        Wait(tensor=6, before_op=3),
        SwapIn(tensor=6, trigger_op=3),
    ],
)
#: A code leaves while there is no room for what it was made from.
A_CODE_LEAVES_LATE = (
    _graph(
        [1024, 1001, 2024, 0, 0, 0, 0],
        [
            (RELU, FORWARD, [], [0, 3], False),
            ("large", FORWARD, [3], [1, 4], False),
            ("tight", FORWARD, [4], [2, 5], False),
            (GRADIENT, BACKWARD, [0, 5], [], False),
        ],
        1024,
    ),
    [100, 50_000, 100, 100],
    _device(out=10**6, into=FREE),
    [
        *_released((0, 1), (1, 2), (2, 3), (7, 4), (3, 2), (4, 3), (5, 4)),
        SwapOut(tensor=7, trigger_op=1),
        Wait(tensor=7, before_op=3),
        SwapIn(tensor=7, trigger_op=3),
    ],
)
#: So small a tensor is packed that its bytes do not matter, but the time does that its code saves.
A_SMALL_CODE_SAVES_TIME = (
    _graph(
        [128, 10**6, 10**6, 0, 0, 0],
        [
            (RELU, FORWARD, [], [0, 1, 3], False),
            ("large", FORWARD, [3], [2, 4], False),
            (GRADIENT, BACKWARD, [0, 1, 4], [5], False),
            ("use", BACKWARD, [1, 5], [], False),
        ],
        128,
    ),
    [100, 100, 500_000, 100],
    _device(out=10**9, into=10**9, memory=10**9),
    [
        *_released((0, 1), (2, 2), (1, 4), (6, 3), (3, 2), (4, 3), (5, 4)),
        SwapOut(tensor=1, trigger_op=0),
        Wait(tensor=1, before_op=2),
        SwapIn(tensor=1, trigger_op=2),
    ],
)
#: An op takes two codes.
TWO_CODES = (
    _with_another_code(
        _graph(
            [1024, 1024, 2000, 0, 0],
            [
                (RELU, FORWARD, [], [0, 1, 3], False),
                ("large", FORWARD, [3], [2, 4], False),
                (GRADIENT, BACKWARD, [0, 1, 4], [], False),
            ],
            2048,
        )
    ),
    [100, 100, 1000],
    _device(out=10**4, into=10**4),
    _released((0, 1), (1, 2), (3, 3), (2, 3), (4, 4), (5, 4), (6, 4)),
)
#: What is needed early is made again of two tensors that are still there, each as large as it.
OF_TWO_AS_LARGE = (
    _graph(
        [1000, 1000, 1000, 500, 0, 0, 0, 0, 0],
        [
            ("sources", FORWARD, [], [0, 1, 4], False),
            ("tensor", FORWARD, [0, 1, 4], [2, 5], True),
            ("large", FORWARD, [5], [3, 6], False),
            ("sources' use", FORWARD, [0, 1, 6], [7], False),
            ("another op", FORWARD, [7], [8], False),
            ("use", BACKWARD, [2, 8], [], False),
        ],
    ),
    [100, 10, 100, 100, 100, 100],
    _device(out=1000, into=1000),
    [
        *_released((2, 1), (3, 2), (0, 3), (1, 3), (5, 3), (6, 3), (4, 3), (7, 4), (2, 5), (8, 5)),
        Recompute(tensor=2, before_op=3, ops=(1,)),
    ],
)


@pytest.mark.parametrize("fixed", [False, True], ids=["any order", "its order"])
@pytest.mark.parametrize(
    ("case", "order", "packed", "above_ns"),
    [
        (A_SOURCE_COMES_BACK, (0, 1, 2, 3), (), 111),
        (A_SOURCE_IS_ON_THE_HOST, (0, 1, 2, 3, 4), (), 1),
        (AGAIN_WITH_A_CODE, (0, 1, 2, 3, 4), (0,), 0),
        (A_CODE_LEAVES_EARLY, (0, 2, 1, 3, 4), (0,), 1),
        (A_CODE_LEAVES_LATE, (0, 1, 2, 3, 4), (0,), 1),
        (A_SMALL_CODE_SAVES_TIME, (0, 1, 2, 3, 4), (0,), 2),
        (TWO_CODES, (0, 1, 2, 3, 4), (0, 1), 0),
        (OF_TWO_AS_LARGE, (0, 1, 2, 3, 4, 5), (), 5),
    ],
    ids=["comes back", "on the host", "again", "early", "late", "small", "two codes", "two"],
)
def test_the_bound_is_not_above_it_and_hardly_below(case, order, packed, above_ns, fixed):
    graph, latencies_ns, device, events = case
    job = JobRequest(job_id=0, graph=graph, latencies_ns=latencies_ns)
    planned = as_packed(job, tuple(TensorId(tensor) for tensor in packed), device)
    plan = Plan(policy="by hand", order=order, events=tuple(events), packed=packed)
    plan, timeline = simulate_settled(planned.graph, planned.latencies_ns, plan, device)
    assert lower(planned.graph, plan).guaranteed_peak_nbytes == timeline.peak_nbytes
    captured = tuple(range(len(graph.ops))) if fixed else None
    bound_ns = lower_bound_time_ns(graph, latencies_ns, device, timeline.peak_nbytes, order=captured)
    assert timeline.period_ns - bound_ns == above_ns


def test_a_tensor_that_is_only_read_with_its_code_before_the_forward_pass_ends_is_none_to_pack():
    graph = _graph(
        [1024, 2000, 0, 0, 0],
        [
            (RELU, FORWARD, [], [0, 2], False),
            (GRADIENT, BACKWARD, [0, 2], [3], False),
            ("large", FORWARD, [3], [1, 4], False),
            ("reader", FORWARD, [0, 4], [], False),
        ],
        1024,
    )
    # A byte each way in a nanosecond.
    assert lower_bound_time_ns(graph, [100] * 4, device_of(10**6), 2500) == 400 + 2 * 1024
