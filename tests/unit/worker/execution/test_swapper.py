import pytest
import torch

from tensile_db.errors import DeviceOutOfMemory
from tensile_db.worker.devices.block import Block
from tensile_db.worker.execution.swapper import Swapper
from tests.played.fake_device import FakeDevice

N = 100


@pytest.fixture
def device():
    return FakeDevice(memory_nbytes=1000)


@pytest.fixture
def swapper(device):
    return Swapper(device, device.memory.open_account(1, 250))


def block_on_host(device, value, name="a"):
    block = Block(name=name, nbytes=N, persistent=True)
    block.host = device.host.acquire(N).fill_(value)
    return block


def block_on_device(device, swapper, value, name="a"):
    block = block_on_host(device, value, name)
    swapper.copy_in(block)
    swapper.settle(block)
    swapper.drop_host(block)
    return block


def test_a_swapped_out_tensor_holds_device_memory_until_it_is_waited_for(device, swapper):
    block = block_on_device(device, swapper, 5)
    swapper.copy_out(block)
    assert device.memory.used_nbytes == N
    assert not block.host_is_valid
    swapper.settle(block)
    assert device.memory.used_nbytes == 0
    assert block.host_is_valid
    assert bytes(block.host) == b"\x05" * N


def test_a_swap_in_holds_device_memory_from_its_start(device, swapper):
    block = block_on_host(device, 5)
    swapper.copy_in(block)
    assert device.memory.used_nbytes == N
    swapper.settle(block)
    assert bytes(block.storage) == b"\x05" * N
    assert block.host_is_valid


def test_a_swap_in_beyond_the_budget_is_refused_before_anything_is_allocated(device, swapper):
    blocks = [block_on_host(device, 5, name) for name in "abc"]
    swapper.copy_in(blocks[0])
    swapper.copy_in(blocks[1])
    with pytest.raises(DeviceOutOfMemory):
        swapper.copy_in(blocks[2])
    assert blocks[2].storage is None
    assert device.memory.used_nbytes == 2 * N


def test_swapping_out_again_what_was_not_written_is_free(device, swapper):
    block = block_on_host(device, 5)
    swapper.copy_in(block)
    swapper.settle(block)
    swapper.reset_counts()
    copies = len(device.copies)
    swapper.copy_out(block)
    swapper.settle(block)
    assert (len(device.copies), swapper.out_nbytes, swapper.stall_ns()) == (copies, 0, 0)
    assert device.memory.used_nbytes == 0
    assert bytes(block.host) == b"\x05" * N


def test_swapping_out_again_what_was_written_copies_the_new_value(device, swapper):
    block = block_on_host(device, 5)
    swapper.copy_in(block)
    swapper.settle(block)
    swapper.drop_host(block)
    block.storage.fill_(6)
    swapper.copy_out(block)
    swapper.settle(block)
    assert bytes(block.host) == b"\x06" * N
    assert swapper.out_nbytes == N


def test_a_write_while_the_tensor_is_copied_out_is_refused(device, swapper):
    block = block_on_device(device, swapper, 5)
    swapper.copy_out(block)
    with pytest.raises(AssertionError, match="written while it is copied"):
        swapper.drop_host(block)


def test_tensors_over_a_storage_go_when_it_leaves(device, swapper):
    block = block_on_host(device, 5)
    table = [torch.zeros(1), torch.zeros(1), torch.zeros(1)]
    block.caches.append((table, [0, 2]))
    swapper.copy_in(block)
    swapper.settle(block)
    swapper.drop_device(block)
    assert [tensor is None for tensor in table] == [True, False, True]


def test_time_spent_waiting_is_counted(device, swapper):
    first, second = block_on_host(device, 5), block_on_host(device, 6, "b")
    swapper.copy_in(first)
    swapper.copy_in(second)
    device.now_ns += 30
    swapper.settle(first)
    assert swapper.stall_ns() == 70
    swapper.settle(second)
    assert (swapper.stall_ns(), swapper.in_nbytes) == (170, 2 * N)


def test_abandoned_copies_are_cancelled_and_their_memory_can_be_freed(device, swapper):
    block = block_on_host(device, 5)
    swapper.copy_in(block)
    swapper.abandon_all()
    assert [copy.state for copy in device.copies] == ["cancelled"]
    swapper.drop(block)
    assert (device.memory.used_nbytes, device.host.used_nbytes) == (0, 0)
