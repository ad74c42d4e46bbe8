"""Captured networks that several tests of the scheduler plan."""

import pytest

from tests.captured_steps import captured_step


@pytest.fixture(scope="module", params=["test_resnet", "test_vit", "test_efficientnet"])
def captured_graph(request):
    """A step of a network with Adam, of 32 images of 96 x 96 pixels."""
    return captured_step(request.param, batch=32, side=96)
