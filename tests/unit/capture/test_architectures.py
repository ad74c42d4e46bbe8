import sys
import types
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

from tensile_db.capture.networks import architectures
from tensile_db.errors import InvalidRequest, UnknownName


@pytest.mark.parametrize(
    ("name", "kind", "stands_for"),
    [
        ("vgg16", "timm", "vgg16"),
        ("inceptionv3", "alias", "inception_v3"),
        ("inceptionv4", "alias", "inception_v4"),
        ("resnet50", "timm", "resnet50"),
        ("densenet", "alias", "densenet121"),
        ("mlp", "builtin", "mlp"),
    ],
)
def test_names_resolve(name, kind, stands_for):
    architecture = architectures.resolve(name)
    assert (architecture.kind, architecture.resolves_to) == (kind, stands_for)
    assert (name, kind, stands_for) in architectures.known_names()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("vgg61", '"vgg16"'), ("resnet_50", '"resnet50"'), ("inception-v3", '"inception_v3"')],
)
def test_an_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(UnknownName, match=f'unknown architecture "{name}"') as raised:
        architectures.resolve(name)
    assert nearest in raised.value.hint


@pytest.mark.parametrize("name", ["hf-hub:timm/resnet18.a1_in1k", "local-dir:/etc", "vgg16.tv_in1k", ""])
def test_names_that_would_fetch_or_read_weights_are_unknown(name):
    with pytest.raises(UnknownName):
        architectures.resolve(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vgg16", {"dropuot": 0.1}, 'unknown option of architecture vgg16 "dropuot"'),
        ("vgg16", {"dropout": 1.0}, "architecture vgg16: dropout is 1.0"),
        ("vgg16", {"dropout": True}, "architecture vgg16: dropout is True"),
        ("vgg16", {"drop_path": 0.1}, 'architecture "vgg16" cannot be built for images of 3 x 32 x 32'),
        ("mlp", {"hidden_units": [8, 0]}, r"architecture mlp: hidden_units is \[8, 0\]"),
        ("mlp", {"hidden_units": "8"}, "architecture mlp: hidden_units is '8'"),
        ("mlp", {"width": 8}, 'unknown option of architecture mlp "width"'),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(InvalidRequest, match=message):
        architectures.build(name, num_outputs=2, input_shape=(3, 32, 32), seed=0, options=options)


def test_an_image_network_refuses_rows_of_numbers():
    with pytest.raises(InvalidRequest, match="takes images") as raised:
        architectures.build("resnet50", num_outputs=2, input_shape=(9,), seed=0)
    assert '"mlp"' in raised.value.hint


def test_equal_seeds_give_equal_weights_and_leave_the_default_generator_alone():
    before = torch.random.get_rng_state()
    one, same, other = (
        architectures.build("mlp", num_outputs=2, input_shape=(3,), seed=seed).state_dict()
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["1.weight"], other["1.weight"])


def test_an_mlp_has_the_layers_asked_for():
    options = {"hidden_units": [7, 5], "dropout": 0.5}
    model = architectures.build("mlp", num_outputs=2, input_shape=(3,), seed=0, options=options)
    assert [type(layer).__name__ for layer in model] == [
        "Flatten", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear",
    ]  # fmt: skip
    widths = [(layer.in_features, layer.out_features) for layer in model if isinstance(layer, nn.Linear)]
    assert widths == [(3, 7), (7, 5), (5, 2)]


def test_vgg_drops_out_half_as_its_paper_does():
    with torch.device("meta"):
        model = architectures.build("vgg11", num_outputs=2, input_shape=(3, 32, 32), seed=0)
    assert [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] == [0.5, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source", "size"),
    [
        ("vgg16", (28, 28), (32, 32)),
        ("resnet50", (48, 40), (48, 40)),
        ("resnet50", (480, 640), (224, 224)),
        pytest.param("inceptionv3", (28, 28), (75, 75), marks=pytest.mark.thorough),
        ("vit_tiny_patch16_224", (40, 40), (48, 48)),
        pytest.param("crossvit_9_240", (32, 32), (240, 240), marks=pytest.mark.thorough),
        ("mlp", (28, 28), (28, 28)),
    ],
)
def test_images_get_the_nearest_size_that_the_network_runs_on(name, source, size):
    assert architectures.default_image_size(name, source) == size


def test_grey_images_become_rgb_for_timms_networks_only():
    assert architectures.default_channels("resnet50", 1) == 3
    assert architectures.default_channels("mlp", 1) == 1


@pytest.fixture
def offered(monkeypatch):
    """An installed package that offers networks."""
    module = types.ModuleType("offering")
    module.build_tiny = lambda num_outputs, in_channels, image_size, *, wide=4: nn.Sequential(
        nn.Linear(in_channels, wide), nn.Linear(wide, num_outputs)
    )
    module.leave = lambda num_outputs, in_channels, image_size: sys.exit("no data here")
    module.build_nothing = lambda num_outputs, in_channels, image_size: None
    monkeypatch.setitem(sys.modules, "offering", module)
    points = [
        EntryPoint(name="tiny", value="offering:build_tiny", group=architectures.ENTRY_POINT_GROUP),
        EntryPoint(name="nothing", value="offering:build_nothing", group=architectures.ENTRY_POINT_GROUP),
        EntryPoint(name="leaving", value="offering:leave", group=architectures.ENTRY_POINT_GROUP),
        EntryPoint(name="absent", value="not_there:build", group=architectures.ENTRY_POINT_GROUP),
        EntryPoint(name="mlp", value="offering:build_nothing", group=architectures.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(
        architectures, "entry_points",
        lambda *, group: points if group == "tensile_db.architectures" else [],
    )  # fmt: skip


@pytest.mark.usefixtures("offered")
def test_a_package_offers_an_architecture():
    assert ("tiny", "package", "offering:build_tiny") in architectures.known_names()
    model = architectures.build("tiny", num_outputs=2, input_shape=(3,), seed=0, options={"wide": 6})
    assert model(torch.zeros(1, 3)).shape == (1, 2)


@pytest.mark.usefixtures("offered")
def test_a_package_cannot_take_a_name_of_ours():
    assert architectures.resolve("mlp").kind == "builtin"


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tiny", {"narrow": 1}, "unexpected keyword argument 'narrow'"),
        ("nothing", {}, "gave a NoneType, not an nn.Module"),
        ("leaving", {}, "cannot be built: SystemExit: no data here"),
        ("absent", {}, "No module named 'not_there'"),
    ],
)
def test_a_package_that_fails_ends_the_request_only(name, options, message):
    with pytest.raises(InvalidRequest, match=message):
        architectures.build(name, num_outputs=2, input_shape=(3,), seed=0, options=options)
