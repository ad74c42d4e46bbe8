"""The protocol's promises (worker/devices/device.py) on a GPU."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from tensile_db.errors import DeviceOutOfMemory, DriverOutOfMemory, InvalidRequest
from tensile_db.worker.devices.block import Block
from tensile_db.worker.execution.device_failures import device_failures
from tensile_db.worker.execution.swapper import Swapper

# Where PyTorch has no deterministic kernel it says so; here that is no defect.
pytestmark = pytest.mark.filterwarnings("default")

MIB = 2**20


def bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def test_what_is_measured_is_plausible(open_gpu):
    spec = open_gpu().spec
    assert (spec.name, spec.memory_nbytes) == ("cuda:0", 4 * 2**30)
    assert 10**9 < spec.d2h_bytes_per_s < 10**12
    assert 10**9 < spec.h2d_bytes_per_s < 10**12
    assert 10**11 < spec.flops_per_s < 10**15
    assert 10**10 < spec.memory_bytes_per_s < 10**14
    assert 500 < spec.op_overhead_ns < 1_000_000


def test_what_another_process_holds_is_told(open_gpu):
    device = open_gpu()
    before_nbytes = device.others_nbytes()
    if before_nbytes is None:
        pytest.skip("the driver does not tell which process holds what")
    holding = (
        "import torch; held = torch.ones(256 * 2**20, dtype=torch.uint8, device='cuda');"
        "torch.cuda.synchronize(); print('holds', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "holds\n"
        assert device.others_nbytes() >= before_nbytes + 256 * MIB
        other.stdin.write("\n")


def test_a_tensor_comes_back_as_it_left(open_gpu):
    device = open_gpu()
    swapper = Swapper(device, device.memory.open_account(1, 256 * MIB))
    blocks = [Block(name=str(i), nbytes=16 * MIB, persistent=True) for i in range(8)]
    with device.computing():
        for number, block in enumerate(blocks):
            swapper._account.charge(block.nbytes)
            block.storage = device.allocate(block.nbytes)
            bytes_of(block.storage).fill_(number)
        for _ in range(20):
            for block in blocks:
                swapper.copy_out(block)
            for block in blocks:
                swapper.settle(block)
            # Takes the memory that they have left, and spoils it.
            spoiled = torch.full((128 * MIB,), 255, dtype=torch.uint8, device=device.torch_device)
            del spoiled
            for block in blocks:
                swapper.copy_in(block)
            for block in blocks:
                swapper.settle(block)
                bytes_of(block.storage).add_(1)
                swapper.drop_host(block)
        values = [device.fetch(bytes_of(block.storage)).get() for block in blocks]
    assert [value.unique().tolist() for value in values] == [[number + 20] for number in range(8)]
    for block in blocks:
        swapper.drop(block)
    swapper._account.close()


def test_a_read_only_batch_arrives_and_one_of_another_type_is_refused(open_gpu):
    device = open_gpu()
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    rows.flags.writeable = False
    with device.computing():
        target = torch.zeros(2, 3, device=device.torch_device)
        device.fill(target, rows)
        assert device.fetch(target).get().tolist() == rows.tolist()
        with pytest.raises(TypeError, match="Cannot cast"):
            device.fill(target, rows.astype(np.float64))


def test_time_between_marks_is_the_kernels(open_gpu):
    device = open_gpu()
    with device.computing():
        matrix = torch.randn(4096, 4096, device=device.torch_device)
        marks = [device.record()]
        for count in (1, 8):
            for _ in range(count):
                matrix @ matrix
            marks.append(device.record())
        one, eight = (device.elapsed_ns(*pair) for pair in pairwise(marks))
        del matrix
    assert 2 < eight / one < 32


def test_the_allocator_refuses_what_no_account_has_charged(open_gpu):
    device = open_gpu(memory_nbytes=512 * MIB)
    with pytest.raises(DriverOutOfMemory), device_failures(device), device.computing():
        torch.empty(3 * 2**30, dtype=torch.uint8, device=device.torch_device)


def test_an_account_refuses_before_anything_is_allocated(open_gpu):
    device = open_gpu(memory_nbytes=64 * MIB)
    account = device.memory.open_account(1, 64 * MIB)
    before = torch.cuda.memory_allocated()
    with pytest.raises(DeviceOutOfMemory):
        account.charge(65 * MIB)
    assert torch.cuda.memory_allocated() == before
    account.close()


def test_more_memory_than_there_is_is_refused(gpu, open_gpu):
    with pytest.raises(InvalidRequest, match="bytes for jobs"):
        open_gpu(memory_nbytes=2**50)
