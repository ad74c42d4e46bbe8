"""The device of the GPU bench, as far as it can be seen without one."""

import pytest
import torch

from bench.gpu.machine import Machine
from tensile_db.capture.precision import Precision
from tensile_db.worker.devices.cuda.runtime import allow_tf32


@pytest.fixture(params=[True, False])
def setting(request):
    """TF32 allowed or not, as an open device has set it."""
    allow_tf32(request.param)
    yield request.param
    allow_tf32(False)


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [(Precision.TF32, True), (Precision.FLOAT32, False), (Precision.BFLOAT16, False)],
)
def test_tf32_is_as_wanted_within_and_as_it_was_afterwards(setting, precision, wanted):
    with Machine("cuda:0").in_precision(precision):
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (wanted, wanted)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (setting, setting)
