"""Every policy's plans of the papers' networks: the replay agrees, and they train bit for bit as eager does.

Width and depth are the networks' own; images are as small as each takes.
"""

from copy import deepcopy
from functools import cache, lru_cache, partial
from itertools import product

import pytest

from tensile_db.capture.networks.architectures import build
from tensile_db.scheduler.policies import POLICIES
from tests.steps.bitwise_runs import CLASSES, Training, capture, train_eagerly
from tests.steps.policy_runs import train_by_policy

#: Pixels, and the optimizer: with less state they are faster to compare; more is in test_networks_bitwise.py.
NETWORKS = {
    "vgg16": (32, "sgd"),
    "resnet50": (32, "sgd"),
    "inception_v3": (75, "momentum"),
    "inception_v4": (75, "sgd"),
    "densenet121": (32, "sgd"),
    "vit_tiny_patch16_224": (32, "adamw"),
}
BATCH = 2

#: Each policy on ResNet-50 or the ViT, a new one, too; the other networks take minutes by most.
ALWAYS = {
    "resnet50": (
        *("vdnn_all", "vdnn_conv", "checkpoint_articulation", "capuchin", "tensile", "tsplit", "auto_split"),
        *("auto_exact", "auto"),
    ),
    "vit_tiny_patch16_224": ("vanilla", "checkpoint", "superneurons", "superneurons_memory"),
}


@cache
def original(network):
    pixels, _ = NETWORKS[network]
    return build(network, num_outputs=CLASSES, input_shape=(3, pixels, pixels), seed=7, options={})


def training_of(network):
    pixels, optimizer = NETWORKS[network]
    shape = (BATCH, 3, pixels, pixels)
    return Training(build=lambda: deepcopy(original(network)), shape=shape, optimizer=optimizer, iterations=2)


@cache
def eager(network):
    """Return the bits that eager PyTorch trains the network to, and its losses."""
    return train_eagerly(training_of(network))


@lru_cache(maxsize=1)
def captured(network):
    return capture(training_of(network))


@pytest.mark.parametrize(
    ("network", "policy"),
    [
        pytest.param(
            network,
            policy,
            marks=[
                # One process captures a network, and trains it eagerly, for all policies.
                pytest.mark.xdist_group(network),
                *([] if policy in ALWAYS.get(network, ()) else [pytest.mark.thorough]),
            ],
        )
        for network, policy in product(NETWORKS, POLICIES)
    ],
)
def test_a_policys_plan_of_a_network(cpu_device, network, policy):
    step, state = captured(network)
    batches = training_of(network).batches()
    train_by_policy(cpu_device, policy, step, state, batches, partial(eager, network))


def test_every_policy_is_among_those_always_tried():
    assert {policy for policies in ALWAYS.values() for policy in policies} == {*POLICIES}
    assert ALWAYS.keys() <= NETWORKS.keys()
