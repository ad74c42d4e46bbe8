"""What a GPU's failures look like, and that the device is only then lost when it is."""

import subprocess
import sys

import pytest

from tensile_db.errors import DriverOutOfMemory, HostOutOfMemory
from tensile_db.worker.devices.slab import Slab
from tensile_db.worker.execution.device_failures import device_failures

GIB = 2**30
#: More than any machine has.
FAR_TOO_MUCH = 2**46

#: An index beyond a tensor ends the context.  What is seen next is a library's error.
LOSING = """
import torch
from tensile_db.errors import DeviceLost
from tensile_db.worker.devices.cuda.opening import open_cuda
from tensile_db.worker.execution.device_failures import device_failures

device = open_cuda("cuda:0", memory_nbytes=2**30, host_nbytes=2**30)
assert device.find_loss() is None
try:
    with device_failures(device), device.computing():
        numbers = torch.ones(8, 8, device=device.torch_device)
        numbers[torch.full((8,), 1 << 20, device=device.torch_device)]
        for _ in range(100):
            torch.mm(numbers, numbers)
        device.finish()
except DeviceLost as error:
    print("lost:", error.message)
"""


def test_memory_that_cannot_be_pinned_is_no_lost_device(open_gpu):
    device = open_gpu()
    with pytest.raises(DriverOutOfMemory), device_failures(device), device.computing():
        device._runtime.pinned(FAR_TOO_MUCH)
    assert device.find_loss() is None
    slab = Slab(2 * FAR_TOO_MUCH, device._runtime.pinned)
    with pytest.raises(HostOutOfMemory, match="the machine has no more"):
        slab.allocate(FAR_TOO_MUCH)
    assert slab.allocate(GIB).nbytes() == GIB
    slab.close()


def test_a_device_is_lost_whose_context_has_ended(gpu):
    said = subprocess.run(
        [sys.executable, "-c", LOSING], capture_output=True, text=True, check=False, timeout=60
    )
    assert "lost: the device failed: CUDA error: device-side assert triggered" in said.stdout, said.stderr
