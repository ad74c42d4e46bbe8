"""A PostgreSQL laid out by bench.gpu.pack runs by itself, from a folder of any name."""

import json

import pytest

from bench.gpu import pack_check, pack_server
from bench.gpu.brought import PACKING_LIST
from tensile_db.errors import NotInstalled
from tensile_db.local_postgres import find_postgres


@pytest.fixture
def unpacked(server_folder, monkeypatch):
    """This machine's PostgreSQL, laid out as it is packed."""
    monkeypatch.setenv("PG_CONFIG", "")
    folder = server_folder / "laid out"
    bindir = pack_server.lay_out(find_postgres(), folder)
    (folder / PACKING_LIST).write_text(json.dumps({"bindir": str(bindir)}))
    return folder


@pytest.mark.thorough
def test_it_loads_what_was_packed_and_nothing_else(unpacked, server_folder):
    pack_check.check(unpacked, server_folder / "whole")
    # Found among the system's own, where it is not packed.
    (unpacked / "libraries" / "libz.so.1").unlink()
    with pytest.raises(NotInstalled, match=r"loads what was not packed: .*libz\.so\.1"):
        pack_check.check(unpacked, server_folder / "less")
