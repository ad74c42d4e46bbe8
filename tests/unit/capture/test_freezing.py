"""Which layers of a network are frozen, and what becomes of those between them."""

import pytest
import timm
from torch import nn

from tensile_db.capture.networks.architectures import build, build_empty
from tensile_db.capture.networks.freezing import freeze_backbone, frozen_modules
from tensile_db.capture.state import model_state
from tensile_db.errors import InvalidRequest


def shapes(name, num_outputs, input_shape):
    network = build_empty(name, num_outputs=num_outputs, input_shape=input_shape)
    return {tensor: value.shape for tensor, value in model_state(network).items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "input_shape", "trained"),
    [
        ("test_resnet", (3, 32, 32), {"fc.weight", "fc.bias"}),
        ("test_vit", (3, 160, 160), {"head.weight", "head.bias"}),
        ("vgg11", (3, 224, 224), {"head.fc.weight", "head.fc.bias"}),
        ("densenet121", (3, 64, 64), {"classifier.weight", "classifier.bias"}),
        ("mlp", (4,), {"5.weight", "5.bias"}),
    ],
)
def test_only_what_goes_by_the_number_of_outputs_is_trained(name, input_shape, trained):
    network = build_empty(name, num_outputs=5, input_shape=input_shape)
    freeze_backbone(network, shapes(name, 6, input_shape), architecture=name)
    assert {each for each, own in network.named_parameters() if own.requires_grad} == trained


@pytest.mark.slow
def test_dropout_within_the_backbone_is_off_and_before_the_outputs_on():
    network = timm.create_model("vgg11", num_classes=5, drop_rate=0.5)
    freeze_backbone(network, shapes("vgg11", 6, (3, 224, 224)), architecture="vgg11")
    frozen = list(frozen_modules(network))
    assert frozen == [network.features, network.pre_logits]
    evaluated = {module for each in frozen for module in each.modules()}
    drops = [module for module in network.modules() if isinstance(module, nn.Dropout)]
    # One between two layers that have learned, one before that of the outputs.
    assert [module in evaluated for module in drops] == [True, False]


def test_dropout_is_off_between_frozen_layers_that_lie_beside_it():
    options = {"hidden_units": [8, 8], "dropout": 0.5}
    network = build("mlp", num_outputs=5, input_shape=(4,), seed=0, options=options)
    wider = build("mlp", num_outputs=6, input_shape=(4,), seed=0, options=options)
    shapes_then = {name: tensor.shape for name, tensor in model_state(wider).items()}
    freeze_backbone(network, shapes_then, architecture="mlp")
    frozen = set(frozen_modules(network))
    kinds = [(type(layer).__name__, layer in frozen) for layer in network]
    assert kinds == [
        ("Flatten", True),
        ("Linear", True),
        ("ReLU", True),
        ("Dropout", True),
        ("Linear", True),
        ("ReLU", False),
        ("Dropout", False),
        ("Linear", False),
    ]


@pytest.mark.parametrize("wider", [None, {"parameter/weight": (5, 3), "parameter/bias": (5,)}])
def test_where_nobody_knows_the_outputs_layer_nothing_is_frozen(wider):
    network = nn.Linear(3, 5)
    with pytest.raises(InvalidRequest, match='which layer of the architecture "theirs" gives its outputs'):
        freeze_backbone(network, wider, architecture="theirs")
    assert all(parameter.requires_grad for parameter in network.parameters())
