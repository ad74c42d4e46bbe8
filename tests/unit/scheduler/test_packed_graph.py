"""Tensors kept as codes: what can be packed, and the graph that comes of it."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Axis, Code, Cut, Phase, Role, Splitting, StepGraph
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.packing.latencies import as_packed
from tensile_db.scheduler.packing.packed_graph import Packing, known_packed_graph, packable
from tensile_db.scheduler.plan import Rewriting
from tensile_db.scheduler.plan_json import plan_from_json, plan_to_json
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import captured_latencies_ns, captured_ops
from tests.examples import examples
from tests.graphs.hand_made import device_of, graph_of
from tests.graphs.random_graphs import latencies_for, training_graphs
from tests.plans.replayed_plans import plan_and_replay

pytestmark = pytest.mark.usefixtures("little_effort")

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
THRESHOLD = "aten.threshold_backward.default"
POOL_BACKWARD = "aten.max_pool2d_with_indices_backward.default"


def rectified(*, pools=True, nbytes=800):
    """Return batch (0), what a layer makes and a rectifier keeps (1), pooled (2), loss (3), gradients (4, 5).

    pools: what comes behind takes of tensor 1 the shape going backward, else its values.
    """
    graph = graph_of(
        [
            (nbytes, Role.INPUT),
            (nbytes, Role.ACTIVATION),
            (nbytes // 4, Role.ACTIVATION),
            (4, Role.OUTPUT),
            (nbytes, Role.ACTIVATION),
            (nbytes, Role.ACTIVATION),
        ],
        [
            ("tensile.load_batch", FORWARD, [], [0], False),
            ("layer", FORWARD, [0], [1], True),
            ("relu_", FORWARD, [1], [1], True),
            ("pool", FORWARD, [1], [2], True),
            ("loss", FORWARD, [2], [3], True),
            (POOL_BACKWARD, BACKWARD, [1, 3], [4], True),
            (THRESHOLD, BACKWARD, [1, 4], [5], True),
            ("tensile.report", Phase.OPTIMIZER, [3], [], False),
        ],
    )
    marked = {6: {"codes": ((1, Code.SIGNS),)}, 5: {"shapes": (1,)} if pools else {}}
    tensors = tuple(replace(tensor, dtype="float32", shape=(2, 5, 20)) for tensor in graph.tensors)
    ops = tuple(
        replace(op, moved_nbytes=_touched_nbytes(graph, op), **marked.get(op.id, {})) for op in graph.ops
    )
    return StepGraph(tensors=tensors, ops=ops)


def _touched_nbytes(graph, op):
    return sum(graph.tensors[tensor].nbytes for tensor in {*op.reads, *op.writes})


def test_a_rectifiers_result_is_packed_behind_the_last_op_that_goes_forward():
    graph = rectified()
    assert packable(graph) == {1: Packing(code=Code.SIGNS, after=3)}
    made = known_packed_graph(graph, (1,))
    assert [op.target for op in made.graph.ops] == [
        "tensile.load_batch",
        "layer",
        "relu_",
        "pool",
        "tensile.pack_signs.default",
        "loss",
        "tensile.max_pool2d_backward_of_codes.default",
        "tensile.threshold_backward_of_signs.default",
        "tensile.report",
    ]
    assert made.ops == (0, 1, 2, 3, None, 4, 5, 6, 7)
    code = made.graph.tensors[6]
    # 200 elements of four bytes; no op that is split asks for rows.
    assert (code.nbytes, code.shape, code.dtype, code.persistent) == (25, (25,), "uint8", False)
    pack, pool, threshold = (made.graph.ops[op] for op in (4, 6, 7))
    assert (pack.reads, pack.writes, pack.phase, pack.recomputable) == ((1,), (6,), FORWARD, True)
    assert (pool.reads, threshold.reads) == ((3,), (4, 6))
    # What a kernel takes the shape of it is said to move, for so it was measured.
    assert pool.moved_nbytes == graph.ops[5].moved_nbytes
    assert graph.ops[6].moved_nbytes - threshold.moved_nbytes == 800 - 25
    program = lower(made.graph, vanilla.plan_one(made.graph))
    assert program.guaranteed_peak_nbytes == vanilla.peak_nbytes(graph) - 800 + 25


def dropped(*, reads_it_later=False):
    """Return what a layer makes (0), what dropout draws for it (1), the product (2), loss (3), gradient (4).

    reads_it_later: an op takes what was drawn as it is, behind the product.
    """
    graph = graph_of(
        [
            (800, Role.ACTIVATION),
            (800, Role.ACTIVATION),
            (800, Role.ACTIVATION),
            (4, Role.OUTPUT),
            (800, Role.ACTIVATION),
        ],
        [
            ("layer", FORWARD, [], [0], True),
            ("draw", FORWARD, [], [1], False),
            ("aten.mul.Tensor", FORWARD, [0, 1], [2], True),
            ("loss", FORWARD, [1, 2] if reads_it_later else [2], [3], True),
            ("aten.mul.Tensor", BACKWARD, [1, 2, 3], [4], True),
            ("tensile.report", Phase.OPTIMIZER, [3, 4], [], False),
        ],
    )
    tensors = tuple(replace(tensor, dtype="float32", shape=(200,)) for tensor in graph.tensors)
    ops = tuple(
        replace(
            op,
            moved_nbytes=_touched_nbytes(graph, op),
            codes=((1, Code.SIGNS),) if op.target == "aten.mul.Tensor" else (),
        )
        for op in graph.ops
    )
    return StepGraph(tensors=tensors, ops=ops)


def test_what_dropout_drew_is_packed_at_once_and_its_product_can_be_made_again():
    graph = dropped()
    assert packable(graph) == {1: Packing(code=Code.SIGNS, after=1)}
    made = known_packed_graph(graph, (1,)).graph
    assert [op.target for op in made.ops[1:4]] == [
        "draw",
        "tensile.pack_signs.default",
        "tensile.mul_of_signs.default",
    ]
    assert [op.reads for op in made.ops if op.target == "tensile.mul_of_signs.default"] == [(0, 5), (2, 3, 5)]
    # The product can be made again from what is kept, without what cannot be drawn again.
    assert made.ops[3].recomputable
    assert graph.ops[2].moved_nbytes - made.ops[3].moved_nbytes == 800 - 25


def test_a_code_is_made_behind_the_last_op_that_takes_the_whole():
    graph = dropped(reads_it_later=True)
    assert packable(graph) == {1: Packing(code=Code.SIGNS, after=3)}
    made = known_packed_graph(graph, (1,)).graph
    assert [op.target for op in made.ops[2:6]] == [
        "aten.mul.Tensor",
        "loss",
        "tensile.pack_signs.default",
        "tensile.mul_of_signs.default",
    ]


def test_what_nothing_takes_going_backward_is_not_packed():
    graph = dropped()
    forward_only = tuple(replace(op, reads=(2, 3), codes=()) if op.id == 4 else op for op in graph.ops)
    assert packable(StepGraph(tensors=graph.tensors, ops=forward_only)) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"codes": ()},
        {"codes": ((1, Code.SIGNS),), "writes": (1, 5)},
    ],
    ids=["takes values", "writes it"],
)
def test_a_tensor_whose_values_are_taken_or_made_going_backward_is_not_packed(change):
    graph = rectified()
    ops = tuple(replace(op, **change) if op.target == THRESHOLD else op for op in graph.ops)
    assert packable(StepGraph(tensors=graph.tensors, ops=ops)) == {}
    assert packable(rectified(pools=False)) == {}


@pytest.mark.parametrize("change", [{"persistent": True}, {"role": Role.INPUT}, {"role": Role.OUTPUT}])
def test_only_activations_are_packed(change):
    graph = rectified()
    tensors = tuple(replace(t, **change) if t.id == 1 else t for t in graph.tensors)
    assert packable(StepGraph(tensors=tensors, ops=graph.ops)) == {}


#: Shape of a tensor, how it is cut, and its code, in rows of whole bytes.
CUTS = [
    ((2, 5, 80), Axis.BATCH, Cut(outer=1, extent=2, inner=400), (2, 50), Cut(outer=1, extent=2, inner=50)),
    (
        (2, 5, 80),
        Axis.CHANNEL,
        Cut(outer=2, extent=5, inner=80),
        (2, 5, 10),
        Cut(outer=2, extent=5, inner=10),
    ),
    # A channel's last byte is filled up.
    (
        (2, 5, 81),
        Axis.CHANNEL,
        Cut(outer=2, extent=5, inner=81),
        (2, 5, 11),
        Cut(outer=2, extent=5, inner=11),
    ),
    # Channels that lie side by side.
    ((2, 5, 80), Axis.CHANNEL, Cut(outer=10, extent=80, inner=1), (100,), None),
]


@pytest.mark.parametrize(("shape", "axis", "cut", "code", "of_code"), CUTS)
def test_what_is_split_is_split_with_its_code(shape, axis, cut, code, of_code):
    graph = rectified(nbytes=4 * prod(shape))
    tensors = tuple(replace(tensor, shape=shape) for tensor in graph.tensors)
    splitting = Splitting(
        axis=axis, extent=cut.extent, unit=1, cuts=tuple((tensor, cut) for tensor in (1, 4, 5))
    )
    ops = tuple(replace(op, splittings=(splitting,)) if op.target == THRESHOLD else op for op in graph.ops)
    packed = known_packed_graph(StepGraph(tensors=tensors, ops=ops), (1,)).graph
    assert (packed.tensors[6].shape, packed.tensors[6].nbytes) == (code, prod(code))
    (threshold,) = (op for op in packed.ops if op.target.startswith("tensile.threshold"))
    (pack,) = (op for op in packed.ops if op.target.startswith("tensile.pack"))
    cuts = [dict(each.cuts) for op in (threshold, pack) for each in op.splittings]
    assert cuts == ([{4: cut, 5: cut, 6: of_code}, {1: cut, 6: of_code}] if of_code else [])


@given(st.data())
@examples(100)
def test_any_tensors_can_be_packed_and_latencies_are_told_by_the_captured_ops(data):
    graph = data.draw(training_graphs())
    packed = tuple(tensor for tensor in packable(graph) if data.draw(st.booleans()))
    event(f"{min(len(packed), 3)} packed")
    rewriting = Rewriting(packed=packed)
    device = device_of(10**9)
    latencies_ns = data.draw(latencies_for(graph))
    made = as_packed(JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns), packed, device)
    lower(made.graph, vanilla.plan_one(made.graph))
    assert not any(
        tensor in op.reads for op in made.graph.ops if op.phase is not FORWARD for tensor in packed
    )
    again = captured_latencies_ns(graph, rewriting, made.latencies_ns, device)
    for op, was_ns, is_ns in zip(graph.ops, latencies_ns, again, strict=True):
        moved = [each.moved_nbytes for each in made.graph.ops if each.target.startswith("tensile.")]
        # Rounded once each way, by no more than the share of its traffic that an op keeps.
        assert is_ns == pytest.approx(was_ns, abs=2 + op.moved_nbytes / max(1, min(moved)))
    made_from = captured_ops(graph, rewriting)
    assert [op for op in made_from if op is not None] == [op.id for op in graph.ops]


@given(st.data())
@examples(60)
def test_a_packed_plan_as_json_is_read_as_it_was_written(data):
    graph = data.draw(training_graphs())
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)), at_once=True)
    made = plan_and_replay(job, device_of(int(0.9 * vanilla.peak_nbytes(graph)) + 60))
    event("packed" if made.plan.packed else "as it is")
    document = plan_to_json(
        graph, job.latencies_ns, device_of(10**9), made.plan, made.prediction, made.timeline
    )
    assert replace(plan_from_json(document), quick=made.plan.quick) == made.plan
