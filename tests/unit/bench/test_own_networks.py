"""Workloads that are not the benchmarks' own: how they are built, captured, kept and told."""

from functools import partial

import pytest
import torch
from torch import nn

from tensile_db.bench.here import draw_batch
from tensile_db.bench.networks.architecture_workloads import architecture_workload
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.own import own_workload
from tensile_db.bench.networks.workloads import title_of
from tensile_db.commands.own_functions import call
from tensile_db.errors import InvalidRequest


class Scaled(nn.Linear):
    """Multiplies by what is no parameter."""

    def __init__(self, scale):
        super().__init__(3, 4)
        self.scale = scale()

    def forward(self, rows):
        return super().forward(rows * self.scale)


class Placed(nn.Linear):
    """Looks up, by a tensor that is no buffer, what is not trained."""

    def __init__(self, device=None):
        super().__init__(3, 4)
        self.places = nn.Embedding(3, 1).requires_grad_(requires_grad=False)
        self.order = torch.arange(3, device=device)

    def forward(self, rows):
        return super().forward(rows + self.places(self.order).flatten())


class OfFloats(nn.Linear):
    """Takes whole numbers."""

    def forward(self, rows):
        return super().forward(rows.float())


def own(make, dtype=torch.float32):
    """Return the workload of what `make` makes, which takes three numbers."""
    return own_workload(
        "mine:net", partial(call, "network", "mine:net", lambda: (make(), torch.zeros(3, dtype=dtype)))
    )


def test_what_needs_no_values_is_built_without_memory_however_large():
    workload = own_workload("mine:net", lambda: (nn.Linear(2**21, 2**20), torch.zeros(2**21)))
    weight, _bias = workload.module(4).parameters()
    assert (weight.is_meta, weight.nbytes) == (True, 2**43)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Scaled(lambda: torch.ones(3).sum().item()), id="reads a value"),
        pytest.param(lambda: Scaled(lambda: torch.ones(3)), id="keeps a constant"),
        pytest.param(lambda: Scaled(lambda: torch.tensor(2.0)), id="keeps a number"),
        pytest.param(Placed, id="keeps what it looks up by"),
    ],
)
def test_what_needs_values_is_built_with_them(make):
    workload = own(make)
    assert {each.device.type for each in workload.module(4).parameters()} == {"cpu"}
    assert Captures().graph(workload, 8, "sgd").ops


def test_a_constant_on_another_device_is_refused():
    with pytest.raises(InvalidRequest, match='"mine:net" keeps a tensor on meta') as caught:
        own(lambda: Placed("meta"))
    assert caught.value.hint == "Register it as a buffer."


def test_whole_numbers_that_no_embedding_takes_are_drawn():
    workload = own(lambda: OfFloats(3, 4), torch.int64)
    features, target = draw_batch(workload, 4, workload.module(4))
    assert (features.shape, features.dtype, target.shape) == ((4, 3), torch.int64, (4,))
    assert features.max() < 2


def test_captures_of_it_are_not_kept_while_those_of_architectures_are(tmp_path):
    captures = Captures(folder=tmp_path)
    for workload in (own(lambda: nn.Linear(3, 4)), architecture_workload("mlp")):
        captures.graph(workload, 4, "sgd")
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("mlp-4-1-sgd")


def test_results_name_a_network_that_is_not_known_here():
    assert title_of("mine:net") == "mine:net"
    assert title_of("vgg16") == "VGG-16"
