"""Gradients of large weights in parts: which are, what the graph says of them, and the kernels' bits."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tensile_db.capture import parts
from tensile_db.capture.optimizers import configure
from tensile_db.capture.precision import Precision
from tensile_db.capture.train_step import capture_train_step
from tensile_db.graph import Phase, Role
from tensile_db.scheduler.bound.spine import predecessors
from tensile_db.scheduler.plan import Split
from tensile_db.scheduler.splitting.split_graph import split_graph
from tests.examples import examples
from tests.row_networks import parts_of, vgg

aten = torch.ops.aten


def products(hidden=64, inputs=256):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 5))


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


def test_a_convolutions_large_weight_has_its_gradient_in_parts_of_whole_rows(monkeypatch):
    whole = capture(vgg(), (4, 3, 28, 28)).graph
    parts_of(monkeypatch)
    step = capture(vgg(), (4, 3, 28, 28))
    graph = step.graph
    assert [tensor.shape[0] for tensor in gradient_parts(graph, (32, 7, 7))] == [16] * 4
    assert [tensor.shape[0] for tensor in gradient_parts(graph, (64, 1, 1))] == [416] * 9 + [352]
    state = [name for name in step.state if name.startswith("optimizer_state/pre_logits.fc1.weight/exp_avg[")]
    assert [parts.split_name(name)[1].end for name in state] == [16 * 1568, 32 * 1568, 48 * 1568, 64 * 1568]
    # The arithmetic is the same, and biases' gradients are made of one channel.
    assert sum(op.flops for op in graph.ops) == sum(op.flops for op in whole.ops)
    assert gradient_nbytes(graph) == gradient_nbytes(whole)


def gradient_nbytes(graph):
    return sum(tensor.nbytes for tensor in graph.tensors if tensor.role is Role.GRADIENT)


def test_an_update_of_a_part_takes_no_other_parts_gradient(monkeypatch):
    parts_of(monkeypatch)
    graph = capture(vgg(), (4, 3, 28, 28)).graph
    for made in gradient_parts(graph, (32, 7, 7)):
        users = [op for op in graph.ops if made.id in op.reads]
        touched = {tensor for op in users for tensor in op.writes}
        slots = [t for t in touched if graph.tensors[t].role is Role.OPTIMIZER_STATE]
        assert len(slots) == 2
        assert {graph.tensors[slot].nbytes for slot in slots} == {made.nbytes}


def test_of_the_weight_a_convolutions_gradient_takes_but_the_shape(monkeypatch):
    parts_of(monkeypatch)
    graph = capture(vgg(), (4, 3, 28, 28)).graph
    (weight,) = (t.id for t in graph.tensors if t.name == "parameter/pre_logits.fc1.weight")
    makers = [op for op in graph.ops if op.phase is Phase.BACKWARD and weight in op.reads]
    assert [weight in op.unread for op in makers] == [False, True, True, True, True, True]
    updates = [op.id for op in graph.ops if op.phase is Phase.OPTIMIZER and weight in op.writes]
    # The gradient of the input is made of its value, the others are not.
    before = predecessors(graph)[updates[0]]
    assert [op.id in before for op in makers] == [True, False, False, False, False, False]
    last = gradient_parts(graph, (32, 7, 7))[-1].id
    assert not {updates[0]} & set(predecessors(graph)[next(op.id for op in makers if last in op.writes)])


def test_a_split_graph_keeps_what_is_unread(monkeypatch):
    parts_of(monkeypatch)
    graph = capture(vgg(), (4, 3, 28, 28)).graph
    (relu, *_) = (op for op in graph.ops if op.target == "aten.relu_.default" and op.splittings)
    split = split_graph(graph, [Split(axis=relu.splittings[0].axis, parts=2, ops=(relu.id,))])
    assert len(split.graph.ops) > len(graph.ops)
    unread = [op.unread for op in graph.ops if op.unread]
    assert [op.unread for op in split.graph.ops if op.unread] == [
        tuple(sorted(split.whole[tensor] for tensor in tensors)) for tensors in unread
    ]


def test_a_products_large_weight_has_its_gradient_in_parts(monkeypatch):
    parts_of(monkeypatch, 20_000)
    graph = capture(products(), (4, 256)).graph
    assert [tensor.shape for tensor in gradient_parts(graph, (256,))] == [(16, 256)] * 4
    assert not any(op.unread for op in graph.ops)


def test_what_cannot_be_made_by_rows_stays_whole(monkeypatch):
    parts_of(monkeypatch, 20_000)

    def shapes(model, shape=(4, 256), **options):
        return [t.shape for t in capture(model, shape, **options).graph.tensors if t.role is Role.GRADIENT]

    assert (64, 256) not in shapes(products())
    assert (72, 256) in shapes(products(hidden=72)), "72 rows are no multiple of 16"
    assert (64, 512) in shapes(products(inputs=512), (4, 512)), "16 rows are more than a part"
    assert (64, 256) not in shapes(products(), (512, 256))
    assert (64, 256) in shapes(products(), (513, 256)), "sums of more than 512"
    tied = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
    assert (256, 256) not in shapes(tied)
    tied[2].weight = tied[0].weight
    assert (256, 256) in shapes(tied), "the sum of two gradients"
    for precision in (Precision.BFLOAT16, Precision.FLOAT16):
        assert (64, 256) in shapes(products(), precision=precision)


@given(st.data())
@examples(60)
def test_some_rows_of_a_gradient_have_the_bits_of_the_whole(data):
    rows = 16 * data.draw(st.integers(2, 40))
    begin = 16 * data.draw(st.integers(0, rows // 16 - 1))
    end = begin + 16 * data.draw(st.integers(1, (rows - begin) // 16))
    summands = data.draw(st.integers(1, 80) | st.sampled_from([127, 256, 511, 512]))
    channels, side = data.draw(st.integers(1, 70)), data.draw(st.sampled_from([1, 3, 7]))
    torch.manual_seed(data.draw(st.integers(0, 100)))
    images, gradient = torch.randn(summands, channels, side, side), torch.randn(summands, rows, 1, 1)
    if data.draw(st.booleans()):
        images = images.contiguous(memory_format=torch.channels_last)
    whole, _, bias = backward(gradient, images)
    assert torch.equal(backward(gradient[:, begin:end], images)[0], whole[begin:end])
    assert torch.equal(backward(gradient, images[:, :1], weight=False)[2], bias)
    flat = images.reshape(summands, -1)
    transposed = gradient[:, :, 0, 0].t()
    assert torch.equal(transposed[begin:end] @ flat, (transposed @ flat)[begin:end])


def backward(gradient, images, *, weight=True):
    """Return the gradients of a convolution's weight, nothing, and the gradient of its bias."""
    rows, values = gradient.shape[1], torch.randn(gradient.shape[1], *images.shape[1:])
    layout = torch.contiguous_format if images.is_contiguous() else torch.channels_last
    _, of_weight, of_bias = aten.convolution_backward(
        gradient,
        images,
        values.contiguous(memory_format=layout),
        [rows],
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        [False, weight, True],
    )
    return of_weight, None, of_bias
