import pytest
import torch

from tensile_db.errors import HostOutOfMemory
from tensile_db.worker.devices.host_memory import HostPool
from tensile_db.worker.devices.slab import Slab
from tests import driver_errors as e

MIB = 1 << 20


@pytest.fixture
def made():
    return []


@pytest.fixture
def slab(made):
    def make(nbytes):
        made.append(nbytes)
        return torch.zeros(nbytes, dtype=torch.uint8)

    return Slab(192 * MIB, make)


def test_pieces_are_of_the_size_asked_for_and_apart(slab, made):
    pieces = [slab.allocate(nbytes) for nbytes in (1, 511, 512, 513, 3000)]
    for value, piece in enumerate(pieces):
        piece.fill_(value)
    assert [piece.nbytes() for piece in pieces] == [1, 511, 512, 513, 3000]
    assert all(set(piece) == {value} for value, piece in enumerate(pieces))
    assert made == [64 * MIB]


def test_freed_neighbours_serve_a_larger_piece(slab, made):
    pieces = [slab.allocate(16 * MIB) for _ in range(4)]
    for piece in (pieces[1], pieces[3], pieces[2]):
        slab.free(piece)
    assert slab.allocate(48 * MIB).nbytes() == 48 * MIB
    assert made == [64 * MIB]


def test_the_smallest_part_that_is_large_enough_is_taken(slab):
    pieces = [slab.allocate(nbytes * MIB) for nbytes in (8, 1, 2, 1, 52)]
    address = pieces[2].data_ptr()
    slab.free(pieces[0])
    slab.free(pieces[2])
    assert slab.allocate(2 * MIB).data_ptr() == address


def test_chunks_grow_within_the_limit_and_beyond_it_nothing_is_made(slab, made):
    slab.allocate(64 * MIB)
    slab.allocate(100 * MIB)
    assert made == [64 * MIB, 128 * MIB]
    with pytest.raises(HostOutOfMemory) as refusal:
        slab.allocate(40 * MIB)
    assert refusal.value.wanted_nbytes == 40 * MIB
    assert made == [64 * MIB, 128 * MIB]
    slab.allocate(28 * MIB)


def test_pieces_of_two_chunks_are_never_joined(slab, made):
    first, second = slab.allocate(64 * MIB), slab.allocate(64 * MIB)
    slab.free(first)
    slab.free(second)
    slab.allocate(64 * MIB)
    slab.allocate(64 * MIB)
    assert made == [64 * MIB, 64 * MIB]


def test_an_empty_piece_costs_nothing(slab, made):
    slab.free(slab.allocate(0))
    assert made == []


def test_a_refused_buffer_is_not_counted_and_trimmed_ones_serve_other_sizes(slab, made):
    pool = HostPool(slab.allocate, slab.free)
    with pytest.raises(HostOutOfMemory):
        pool.acquire(500 * MIB)
    assert pool.used_nbytes == 0
    pool.release(pool.acquire(64 * MIB))
    pool.trim()
    pool.acquire(32 * MIB)
    pool.acquire(32 * MIB)
    assert made == [64 * MIB]


def scarce(made, *, largest, error=e.no_memory):
    """Return a slab on a system that has no piece that is larger."""

    def make(nbytes):
        made.append(nbytes)
        if nbytes > largest:
            raise error()
        return torch.zeros(nbytes, dtype=torch.uint8)

    return Slab(192 * MIB, make)


def test_where_the_system_has_no_such_chunk_a_smaller_one_does(made):
    slab = scarce(made, largest=20 * MIB)
    assert slab.allocate(9 * MIB).nbytes() == 9 * MIB
    assert made == [64 * MIB, 32 * MIB, 16 * MIB]
    assert slab.nbytes == 16 * MIB
    slab.allocate(7 * MIB)
    assert len(made) == 3


def test_where_the_system_has_no_chunk_that_is_large_enough_nothing_is_taken(made):
    slab = scarce(made, largest=20 * MIB)
    with pytest.raises(HostOutOfMemory, match=r"17.0 MiB wanted, 0 B of 192.0 MiB in use, and the machine"):
        slab.allocate(17 * MIB)
    # Not one that is too small.
    assert made == [64 * MIB, 32 * MIB]
    assert slab.nbytes == 0
    slab.allocate(16 * MIB)


def test_a_device_that_is_lost_when_memory_is_pinned_is_no_lack_of_memory(made):
    slab = scarce(made, largest=0, error=e.lost)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        slab.allocate(MIB)
    assert made == [64 * MIB]
