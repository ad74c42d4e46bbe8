"""A GPU for tests, and the reason where there is none.

Needs nothing of the other tiers' conftest.py: a bare GPU machine has no PostgreSQL.  There:
python -m pytest --confcutdir=tests/gpu tests/gpu
"""

import pytest
import torch

from tensile_db.errors import NoSuchDevice
from tensile_db.worker.devices.cuda.opening import open_cuda, require

GIB = 2**30


@pytest.fixture(scope="session")
def gpu():
    """PyTorch's name of the GPU; skips where there is none."""
    try:
        require("cuda:0")
    except NoSuchDevice as error:
        pytest.skip(f"no GPU: {error.message}")
    return "cuda:0"


@pytest.fixture
def open_gpu(gpu):
    """Open the GPU with so much memory for jobs; each device must be empty at the test's end."""
    opened = []

    def open_device(memory_nbytes=4 * GIB, **settings):
        opened.append(open_cuda(gpu, memory_nbytes=memory_nbytes, host_nbytes=4 * GIB, **settings))
        return opened[-1]

    yield open_device
    for device in opened:
        assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)
        device.close()
    torch.cuda.set_per_process_memory_fraction(1.0, gpu)
