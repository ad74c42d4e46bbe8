"""Captured networks that several tests of the scheduler plan."""

import pytest

from tests.captured_steps import captured_step

#: By optimizer: with much state, and with little.
NETWORKS = {"test_resnet": "adam", "test_vit": "adam", "test_efficientnet": "momentum"}


@pytest.fixture(scope="module", params=NETWORKS)
def captured_graph(request):
    """A step of a network, of 32 images of 96 x 96 pixels."""
    return captured_step(request.param, batch=32, side=96, optimizer=NETWORKS[request.param])
