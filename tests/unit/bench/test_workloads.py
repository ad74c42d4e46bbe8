"""The benchmarks' networks: that they are what they say, and one graph for every batch."""

import pytest
import torch

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.families import family
from tensile_db.bench.networks.transformers import Bert, Gpt, Transformer
from tensile_db.bench.networks.widening import widened
from tensile_db.bench.networks.workloads import WORKLOADS, workload
from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step
from tensile_db.errors import InvalidRequest, UnknownName

#: Left out of `make check`.
pytestmark = pytest.mark.slow

#: Millions of trained parameters, as published; GCN's and U-Net's by hand.
PARAMETERS = {
    "vgg16": 138.4,
    "vgg19": 143.7,
    "resnet50": 25.6,
    "resnet101": 44.5,
    "resnet152": 60.2,
    "inception_v3": 23.8,
    "inception_v4": 42.7,
    "densenet121": 8.0,
    "bert": 109.2,
    "transformer": 60.7,
    "vit": 86.6,
    "gpt": 124.4,
    "gcn": 0.1,
    "unet": 31.0,
}


def trained(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_network_has_the_published_number_of_parameters(name):
    assert round(trained(workload(name).module(1)) / 1e6, 1) == PARAMETERS[name]


def test_an_unknown_workload_suggests_the_nearest():
    with pytest.raises(UnknownName) as refusal:
        workload("resnet5")
    assert "resnet50" in refusal.value.hint


TINY = {"width": 16, "depth": 1, "heads": 2, "vocabulary": 50, "length": 6}


@pytest.mark.parametrize(
    ("model", "tokens", "rows"),
    [
        (lambda: Bert(masked=2, **TINY), 6, 2),
        (lambda: Transformer(**TINY), 12, 6),
        (lambda: Gpt(**TINY), 6, 6),
    ],
    ids=["bert", "transformer", "gpt"],
)
def test_a_transformer_is_captured_with_a_target_for_each_token(model, tokens, rows):
    step = capture_train_step(
        model(),
        batch_shape=(3, tokens),
        target="classes",
        optimizer=configure("adam"),
        features_dtype=torch.int64,
        targets_per_row=rows,
    )
    features, target = step.inputs
    assert (features.dtype, features.size) == (torch.int64, (3, tokens))
    assert (target.dtype, target.size) == (torch.int64, (3 * rows,))


def test_a_target_for_each_token_of_a_model_that_gives_one_a_row_is_refused():
    with pytest.raises(InvalidRequest, match="one row of outputs"):
        capture_train_step(
            torch.nn.Linear(4, 2),
            batch_shape=(3, 4),
            target="classes",
            optimizer=configure("sgd"),
            targets_per_row=2,
        )


def test_a_decoder_does_not_look_ahead():
    torch.manual_seed(1)
    model = Gpt(**TINY).eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    changed = torch.tensor([[1, 2, 3, 9, 9, 9]])
    same = (model(tokens) == model(changed)).all(dim=1)
    assert same.tolist() == [True, True, True, False, False, False]


def test_a_widened_network_has_k_times_the_channels_but_as_many_classes():
    with torch.device("meta"):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.BatchNorm2d(8),
            torch.nn.Flatten(),
            torch.nn.Linear(32, 10),
        )
    wide = widened(model, 5, image_channels=3, classes=10)
    shapes = [tuple(parameter.shape) for parameter in wide.parameters()]
    assert shapes == [(40, 3, 3, 3), (40,), (40,), (40,), (10, 160), (10,)]


def test_a_network_without_a_parameter_scale_says_so():
    with pytest.raises(InvalidRequest, match="not scaled"):
        workload("densenet121").module(1, 2)


def test_a_family_gives_the_graph_that_a_capture_gives(captures):
    vgg = workload("vgg16")
    made = family(lambda batch: captures.graph(vgg, batch, "momentum"), "vgg16")
    # How its ops can be split, too.
    assert made.at(37) == captures.graph(vgg, 37, "momentum")


def test_a_network_that_changes_with_the_batch_has_no_family(captures):
    networks = {8: "gcn", 16: "vgg16", 96: "vgg16"}
    with pytest.raises(InvalidRequest, match="changes its form"):
        family(lambda batch: captures.graph(workload(networks[batch]), batch, "momentum"), "both")


def test_a_kept_capture_is_the_capture(tmp_path):
    first = Captures(folder=tmp_path).graph(workload("gcn"), 2, "sgd")
    assert Captures(folder=tmp_path).graph(workload("gcn"), 2, "sgd") == first
    assert Captures().graph(workload("gcn"), 2, "sgd") == first
    assert len(list(tmp_path.iterdir())) == 1
