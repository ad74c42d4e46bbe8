"""Gradients of large weights in parts: which are, what the graph says of them, and the kernels' bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tensile_db.capture import gradient_rows, parts
from tensile_db.capture.optimizers import configure
from tensile_db.capture.precision import Precision
from tensile_db.capture.train_step import capture_train_step
from tensile_db.graph import Phase, Role
from tensile_db.scheduler.bound.spine import predecessors
from tensile_db.scheduler.plan import Split
from tensile_db.scheduler.splitting.split_graph import split_graph
from tests.examples import examples
from tests.steps.row_networks import OwnWeight, have_parts_of, vgg

aten = torch.ops.aten


def layers(outputs=256, inputs=2048):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, 5))


def capture(model, shape, *, precision=Precision.FLOAT32, optimizer="adam"):
    return capture_train_step(
        model,
        batch_shape=shape,
        target="classes",
        optimizer=configure(optimizer, learning_rate=0.01),
        precision=precision,
    )


def gradient_parts(graph, of):
    """Return the gradients whose shape but for the rows is `of`, in the graph's order."""
    return [t for t in graph.tensors if t.role is Role.GRADIENT and t.shape[1:] == of]


@pytest.mark.slow
def test_a_convolutions_large_weight_has_its_gradient_in_parts_of_whole_rows(monkeypatch):
    whole = capture(vgg(), (4, 3, 28, 28)).graph
    have_parts_of(monkeypatch)
    step = capture(vgg(), (4, 3, 28, 28))
    graph = step.graph
    assert [tensor.shape[0] for tensor in gradient_parts(graph, (64, 7, 7))] == [64] * 16
    state = [name for name in step.state if name.startswith("optimizer_state/pre_logits.fc1.weight/exp_avg[")]
    part = 64 * 64 * 7 * 7
    assert [parts.split_name(name)[1].end for name in state] == [part * count for count in range(1, 17)]
    # The arithmetic is the same, and so is what is made.
    assert sum(op.flops for op in graph.ops) == sum(op.flops for op in whole.ops)
    assert gradient_nbytes(graph) == gradient_nbytes(whole)


@pytest.mark.slow
def test_where_a_convolutions_parts_may_have_other_bits_its_gradient_stays_whole(monkeypatch):
    have_parts_of(monkeypatch)
    # As on a GPU, for which nothing is captured without one.
    monkeypatch.setattr(gradient_rows, "_CONVOLUTIONS_BY_ROWS", ())
    (whole,) = gradient_parts(capture(vgg(), (4, 3, 28, 28)).graph, (64, 7, 7))
    assert whole.shape[0] == 1024
    assert len(gradient_parts(capture(layers(outputs=4096), (4, 2048)).graph, (2048,))) > 1


def test_parts_are_as_equal_as_blocks_of_16_rows_allow(monkeypatch):
    have_parts_of(monkeypatch, 100 * 2048 * 4)
    graph = capture(layers(outputs=512), (4, 2048)).graph
    # Six of 96 rows would be left with one of 32.
    assert [tensor.shape[0] for tensor in gradient_parts(graph, (2048,))] == [80, 80, 96, 80, 80, 96]


def gradient_nbytes(graph):
    return sum(tensor.nbytes for tensor in graph.tensors if tensor.role is Role.GRADIENT)


def test_an_update_of_a_part_takes_no_other_parts_gradient(monkeypatch):
    have_parts_of(monkeypatch)
    graph = capture(vgg(), (4, 3, 28, 28)).graph
    for made in gradient_parts(graph, (64, 7, 7)):
        users = [op for op in graph.ops if made.id in op.reads]
        touched = {tensor for op in users for tensor in op.writes}
        slots = [t for t in touched if graph.tensors[t].role is Role.OPTIMIZER_STATE]
        assert len(slots) == 2
        assert {graph.tensors[slot].nbytes for slot in slots} == {made.nbytes}


def test_of_the_weight_a_convolutions_gradient_takes_but_the_shape(monkeypatch):
    have_parts_of(monkeypatch)
    graph = capture(vgg(), (4, 3, 28, 28)).graph
    (weight,) = (t.id for t in graph.tensors if t.name == "parameter/pre_logits.fc1.weight")
    makers = [op for op in graph.ops if op.phase is Phase.BACKWARD and weight in op.reads]
    assert [weight in op.unread for op in makers] == [False] + [True] * 17
    updates = [op.id for op in graph.ops if op.phase is Phase.OPTIMIZER and weight in op.writes]
    # The gradient of the input is made of its value, the others are not.
    before = predecessors(graph)[updates[0]]
    assert [op.id in before for op in makers] == [True] + [False] * 17
    last = gradient_parts(graph, (64, 7, 7))[-1].id
    assert not {updates[0]} & set(predecessors(graph)[next(op.id for op in makers if last in op.writes)])


def test_a_split_graph_keeps_what_is_unread(monkeypatch):
    have_parts_of(monkeypatch)
    graph = capture(vgg(), (4, 3, 28, 28)).graph
    (relu, *_) = (op for op in graph.ops if op.target == "aten.relu_.default" and op.splittings)
    split = split_graph(graph, [Split(axis=relu.splittings[0].axis, parts=2, ops=(relu.id,))])
    assert len(split.graph.ops) > len(graph.ops)
    unread = [op.unread for op in graph.ops if op.unread]
    assert [op.unread for op in split.graph.ops if op.unread] == [
        tuple(sorted(split.whole[tensor] for tensor in tensors)) for tensors in unread
    ]


def test_what_is_also_read_for_its_value_is_not_unread(monkeypatch):
    have_parts_of(monkeypatch)
    graph = capture(OwnWeight(), (4, 3, 2, 2)).graph
    assert len(gradient_parts(graph, (64, 7, 7))) == 4
    assert not any(op.unread for op in graph.ops)


def test_a_products_large_weight_has_its_gradient_in_parts(monkeypatch):
    have_parts_of(monkeypatch, 64 * 2048 * 4)
    graph = capture(layers(), (4, 2048)).graph
    assert [tensor.shape for tensor in gradient_parts(graph, (2048,))] == [(64, 2048)] * 4
    assert not any(op.unread for op in graph.ops)


@pytest.mark.slow
def test_what_cannot_be_made_by_rows_stays_whole(monkeypatch):
    have_parts_of(monkeypatch, 64 * 2048 * 4)

    def shapes(model, shape=(4, 2048), **options):
        return [t.shape for t in capture(model, shape, **options).graph.tensors if t.role is Role.GRADIENT]

    assert (256, 2048) not in shapes(layers())
    assert (256, 2048) not in shapes(layers(), (512, 2048))
    assert (256, 2048) in shapes(layers(), (513, 2048)), "more summands than were tried"
    assert (264, 2048) in shapes(layers(outputs=264)), "264 rows are no multiple of 16"
    assert (144, 2048) in shapes(layers(outputs=144)), "two parts of 72 rows, but 48 to a part"
    assert (256, 4096) in shapes(layers(inputs=4096), (4, 4096)), "64 rows are more than a part"
    assert (512, 2000) in shapes(layers(512, 2000), (4, 2000)), "rows of less than 2048 elements"
    solid = nn.Sequential(
        nn.Unflatten(1, (256, 2, 2, 2)), nn.Conv3d(256, 256, 2), nn.Flatten(), nn.Linear(256, 5)
    )
    assert (256, 256, 2, 2, 2) in shapes(solid), "a convolution of three dimensions"
    images = nn.Unflatten(1, (128, 4, 4))
    flat = (nn.Flatten(), nn.Linear(256, 5))
    assert (256, 128, 4, 4) not in shapes(nn.Sequential(images, nn.Conv2d(128, 256, 4, bias=False), *flat))
    assert (256, 128, 4, 4) in shapes(nn.Sequential(images, nn.Conv2d(128, 256, 4), *flat)), "a bias"
    tied = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 5))
    assert (2048, 2048) not in shapes(tied)
    tied[2].weight = tied[0].weight
    assert (2048, 2048) in shapes(tied), "the sum of two gradients"
    for precision in (Precision.BFLOAT16, Precision.FLOAT16):
        assert (256, 2048) in shapes(layers(), precision=precision)


#: Without it, convolutions on several threads sum up by other blocks, and parts have other bits at times
#: (docs/planner/codes.md, "Gradients in parts").
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_some_rows_of_a_gradient_have_the_bits_of_the_whole(threads):
    @given(st.data())
    @examples(25)
    def have(data):
        side, channels = data.draw(st.sampled_from([(1, 2048), (3, 228), (7, 42), (1, 4000), (7, 64)]))
        channels += data.draw(st.integers(0, 20))
        count = data.draw(st.integers(2, 4))
        rows = data.draw(st.sampled_from([1024, 16 * data.draw(st.integers(4 * count, 7 * count))]))
        blocks = [rows // 16 * part // count * 16 for part in range(count + 1)]
        part = data.draw(st.integers(0, count - 1))
        begin, end = blocks[part : part + 2]
        summands = data.draw(st.integers(1, 40) | st.sampled_from([100, 256, 512, 1000]))
        torch.manual_seed(data.draw(st.integers(0, 100)))
        images, gradient = torch.randn(summands, channels, side, side), torch.randn(summands, rows, 1, 1)
        if data.draw(st.booleans()):
            images = images.contiguous(memory_format=torch.channels_last)
        weight, bias = backward(gradient, images)
        if HAS_AVX512 or threads == 1:
            assert torch.equal(backward(gradient[:, begin:end], images)[0], weight[begin:end])
        assert rows % 1024 or torch.equal(backward(gradient, images[:, :1], weight=False)[1], bias)
        flat = images.reshape(summands, -1)
        transposed = gradient[:, :, 0, 0].t()
        assert summands > 512 or torch.equal(transposed[begin:end] @ flat, (transposed @ flat)[begin:end])

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        have()
    finally:
        torch.set_num_threads(before)


def backward(gradient, images, *, weight=True):
    """Return the gradients of a convolution's weight, if wanted, and of its bias."""
    rows = gradient.shape[1]
    layout = torch.contiguous_format if images.is_contiguous() else torch.channels_last
    values = torch.randn(rows, *images.shape[1:]).contiguous(memory_format=layout)
    _, of_weight, of_bias = aten.convolution_backward(
        gradient, images, values, [rows], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, weight, True]
    )
    return of_weight, of_bias
