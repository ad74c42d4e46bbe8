"""The cpu device for runs that are compared with plain eager PyTorch.

PyTorch is imported by the fixtures: the process that only hands out the tests has no use for it.
"""

import pytest


@pytest.fixture
def one_thread():
    """Let PyTorch's kernels sum up in one order: eager's and the device's."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_device(one_thread):
    """Open cpu devices, each of which must be empty at the test's end."""
    from tensile_db.worker.devices.cpu import CpuDevice

    opened = []

    def make(memory_nbytes):
        opened.append(CpuDevice(memory_nbytes=memory_nbytes, threads=1))
        return opened[-1]

    yield make
    for device in opened:
        assert device.memory.used_nbytes == 0
        device.close()


@pytest.fixture
def cpu_device(make_device):
    """A device with room for anything; budgets are the jobs' own."""
    return make_device(1 << 34)
