"""A captured step walked in order equals eager PyTorch bit for bit, and keeps its own promises on the way."""

import copy

import pytest
import torch
from torch import nn

from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.precision import Precision
from tensile_db.capture.state import initial_state
from tensile_db.capture.train_step import capture_train_step
from tests.steps import small_networks
from tests.unit.capture.eager import CLASSES, assert_bitwise, assert_model_bitwise, batches
from tests.unit.capture.interpreter import Interpreter, same_bits

#: Left out of `make check`.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_an_mlp_with_dropout_trains_bitwise_as_eager(optimizer):
    options = {"hidden_units": [16, 8], "dropout": 0.3}
    walk = assert_bitwise("mlp", (6, 10), optimizer, options=options, strict=True)
    assert walk.recomputed > 0


def test_a_regression_trains_bitwise_as_eager():
    assert_bitwise("mlp", (6, 10), "adam", target="values", strict=True)


@pytest.mark.parametrize(
    ("name", "shape", "optimizer"),
    [
        ("resnet50", (2, 3, 32, 32), "adam"),
        pytest.param("densenet121", (2, 3, 32, 32), "momentum", marks=pytest.mark.thorough),
        pytest.param("inception_v3", (2, 3, 75, 75), "sgd", marks=pytest.mark.thorough),
        ("vit_tiny_patch16_224", (2, 3, 32, 32), "adamw"),
    ],
)
def test_a_network_trains_bitwise_as_eager(name, shape, optimizer):
    assert_bitwise(name, shape, optimizer, iterations=2)


def test_a_dense_block_trains_bitwise_as_eager():
    assert_model_bitwise(small_networks.build("densenet"), (2, 3, 32, 32), "momentum")


def test_a_vgg_with_dropout_trains_bitwise_as_eager():
    walk = assert_model_bitwise(small_networks.build("vgg with dropout"), (2, 3, 32, 32), "sgd")
    random = [
        op.target
        for op, call in zip(walk.step.graph.ops, walk.step.calls, strict=True)
        if not op.recomputable and "bernoulli" in op.target
    ]
    assert random == ["aten.bernoulli_.float", "aten.bernoulli_.float"]


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16])
@pytest.mark.parametrize("name", ["lstm", "norm first"])
def test_what_kernels_make_in_training_alone_or_not_at_all_is_as_captured(name, precision):
    model = small_networks.build(name)
    shape = (4, 3, 32, 32)
    if precision is Precision.BFLOAT16:
        _skip_where_eager_cannot(model, shape)
    walk = assert_model_bitwise(model, shape, "adam", strict=True, precision=precision)
    assert walk.recomputed > 10


def _skip_where_eager_cannot(model, shape):
    """Skip a network that eager PyTorch cannot train here in bfloat16: LSTMs need certain processors."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            copy.deepcopy(model).train()(torch.zeros(shape))
    except RuntimeError as refusal:
        if "could not create a primitive" not in str(refusal):
            raise
        pytest.skip(f"eager PyTorch cannot train it in bfloat16 on this processor: {refusal}")


@pytest.mark.parametrize(
    "name",
    [
        "resnet10t",  # in-place ReLU after batch norms
        "test_convnext",  # channels_last, layer norms over images of 1 x 1
        "test_efficientnet",  # squeeze and excitation, grouped convolutions
        "test_vit",  # fused attention
        pytest.param("test_maxvit", marks=pytest.mark.thorough),  # windows of 1 x 1
        # batch norms whose gradients come in another layout than their input
        pytest.param("levit_128s", marks=pytest.mark.thorough),
    ],
)
def test_every_op_keeps_its_promises(name):
    walk = assert_bitwise(name, (2, 3, 32, 32), "momentum", iterations=2, strict=True)
    assert walk.recomputed > 100


@pytest.mark.parametrize("name", ["resnet10t", "test_vit"])
def test_a_forward_step_gives_eagers_logits_and_changes_nothing(name):
    shape = (2, 3, 32, 32)
    model = build(name, num_outputs=CLASSES, input_shape=shape[1:], seed=7)
    step = capture_forward_step(model, shape)
    walk = Interpreter(step, torch.Generator(), strict=True)
    state = initial_state(model)
    walk.load_state(state)
    ((features, _),) = batches(shape, "classes", 1)
    logits = walk.run(1, (features,))["logits"]
    with torch.no_grad():
        assert same_bits(logits, model.eval()(features))
    persistent = {tensor.id for tensor in step.graph.tensors if tensor.persistent}
    assert not persistent & {tensor for op in step.graph.ops for tensor in op.writes}


class Swapped(nn.Module):
    """A linear layer over an input that is not contiguous, as one that mixes tokens."""

    def __init__(self, inputs, outputs, *, bias):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)

    def forward(self, features):
        return self.linear(features.transpose(1, 2)).flatten(1)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_forward_step_multiplies_as_eager_does_whether_weights_are_trained_or_not(bias, frozen):
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = Swapped(1024, 1000, bias=bias).requires_grad_(not frozen)
        features = torch.randn(8, 1024, 4)
    step = capture_forward_step(model, tuple(features.shape))
    # ATen's matmul folds rows into one product where the weights require gradients, also under no_grad.
    (product,) = [op.target for op in step.graph.ops if "mm" in op.target]
    assert product == ("aten.bmm.default" if frozen else "aten.mm.default")
    walk = Interpreter(step, torch.Generator(), strict=True)
    walk.load_state(initial_state(model))
    with torch.no_grad():
        assert same_bits(walk.run(1, (features,))["logits"], model(features))


def test_a_training_step_continues_with_the_state_of_a_forward_step():
    model = build("resnet10t", num_outputs=CLASSES, input_shape=(3, 32, 32), seed=7)
    config = configure("sgd")
    train = capture_train_step(model, batch_shape=(2, 3, 32, 32), target="classes", optimizer=config)
    forward = capture_forward_step(model, (4, 3, 32, 32))
    assert list(train.state) == list(forward.state) == list(initial_state(model))
