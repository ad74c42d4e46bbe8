"""Every policy's plans of what is trained beyond the papers' images: the replay agrees, and bits are eager's.

The networks are the benchmarks' own classes, made small.
"""

from copy import deepcopy
from functools import cache, partial

import pytest
import torch

from tensile_db.bench.networks.gcn import Gcn
from tensile_db.bench.networks.transformers import Bert, Gpt, Transformer
from tensile_db.bench.networks.unet import UNet
from tensile_db.errors import InvalidRequest
from tensile_db.scheduler.policies import POLICIES
from tests.examples import one_in
from tests.steps.bitwise_runs import CLASSES, Training, capture_once, train_eagerly
from tests.steps.policy_runs import train_by_policy

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

VOCABULARY, TOKENS, MASKED, PIXELS = 50, 16, 4, 32
NETWORKS = {
    "bert": partial(Bert, width=16, depth=3, heads=2, vocabulary=VOCABULARY, length=TOKENS, masked=MASKED),
    "transformer": partial(Transformer, width=16, depth=2, heads=2, vocabulary=VOCABULARY, length=TOKENS),
    "gpt": partial(Gpt, width=16, depth=3, heads=2, vocabulary=VOCABULARY, length=TOKENS),
    "gcn": partial(Gcn, nodes=64, edges_per_node=3, features=12, width=16, depth=4, classes=CLASSES),
    "unet": partial(UNet, channels=(4, 8, 16), classes=CLASSES),
}
#: Shape of a batch, targets a row, and the vocabulary of tokens.
BATCHES = {
    "bert": ((4, TOKENS), MASKED, VOCABULARY),
    "transformer": ((4, 2 * TOKENS), TOKENS, VOCABULARY),
    "gpt": ((4, TOKENS), TOKENS, VOCABULARY),
    "gcn": ((64, 12), 1, None),
    "unet": ((2, 3, PIXELS, PIXELS), PIXELS**2, None),
}
VDNN = ("vdnn_conv", "vdnn_all")


@cache
def training_of(network):
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        original = NETWORKS[network]().train()
    shape, targets_per_row, vocabulary = BATCHES[network]
    return Training(
        build=lambda: deepcopy(original),
        shape=shape,
        optimizer="adam",
        iterations=2,
        vocabulary=vocabulary,
        targets_per_row=targets_per_row,
    )


@cache
def eager(network):
    return train_eagerly(training_of(network))


def train(device, policy, network):
    step, state = capture_once(training_of(network))
    train_by_policy(device, policy, step, state, training_of(network).batches(), partial(eager, network))


@pytest.mark.parametrize(
    ("network", "policy"),
    one_in(
        4,
        [
            (network, policy)
            for policy in POLICIES
            for network in NETWORKS
            if network == "unet" or policy not in VDNN
        ],
    ),
)
def test_a_policys_plan_of_a_network(cpu_device, network, policy):
    train(cpu_device, policy, network)


@pytest.mark.parametrize("policy", VDNN)
@pytest.mark.parametrize("network", [network for network in NETWORKS if network != "unet"])
def test_a_network_without_convolutions_is_refused_by_vdnn(cpu_device, network, policy):
    with pytest.raises(InvalidRequest, match="feature maps of convolutions, and this network has none"):
        train(cpu_device, policy, network)
