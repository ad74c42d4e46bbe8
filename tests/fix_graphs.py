"""Captured networks that several tests of the scheduler plan."""

import pytest

from tests.captured_steps import SMALL, captured_step

#: timm's by optimizer: with much state, and with little.
OF_TIMM = {"test_resnet": "adam", "test_vit": "adam", "test_efficientnet": "momentum"}
NETWORKS = {SMALL: "adam"} | OF_TIMM


@pytest.fixture(scope="module")
def captured_graph(request):
    """A step of a network, of 32 images of 96 x 96 pixels."""
    return captured_step(request.param, batch=32, side=96, optimizer=NETWORKS[request.param])
