"""The machine's memory, or the container's where that may have less."""

import os

import pytest

from tensile_db.worker import host

MIB = 2**20


@pytest.fixture
def container(tmp_path, monkeypatch):
    """The folder in which the kernel would tell of this container."""
    monkeypatch.setattr(host, "_CONTAINER", tmp_path)
    return tmp_path


def test_a_containers_limit_counts_where_it_is_less(container):
    machine_nbytes = host.host_memory_nbytes()
    assert machine_nbytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (container / "memory.max").write_text(f"{64 * MIB}\n")
    assert host.host_memory_nbytes() == 64 * MIB
    (container / "memory.max").write_text(f"{2 * machine_nbytes}\n")
    assert host.host_memory_nbytes() == machine_nbytes
    (container / "memory.max").write_text("max\n")
    assert host.host_memory_nbytes() == machine_nbytes


def test_what_files_take_of_a_containers_memory_is_available(container):
    (container / "memory.max").write_text(f"{64 * MIB}\n")
    (container / "memory.stat").write_text(f"anon {40 * MIB}\nfile {20 * MIB}\n")
    assert host.available_memory_nbytes() == 24 * MIB
    (container / "memory.stat").write_text(f"anon {50 * MIB}\nfile {14 * MIB}\nshmem {14 * MIB}\n")
    assert host.available_memory_nbytes() == 0
