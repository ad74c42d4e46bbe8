"""What the bench's section `product` finds around it: this machine's own, or what was brought along."""

import json
import os
import platform
import sys
import tarfile

import pytest

from bench.gpu import brought, pack_packages
from bench.gpu.brought import provide
from tensile_db import local_postgres
from tensile_db.errors import NotInstalled

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
BINDIR = "lib/postgresql/15/bin"


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without PostgreSQL, and without the package `module_that_was_brought`."""
    monkeypatch.setattr(local_postgres, "_VERSIONED_FOLDERS", (str(tmp_path / "none"),))
    monkeypatch.setattr(brought, "MODULES", ("json", "module_that_was_brought"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    # Set, so that what is set during the test is taken back.
    for name, value in (("PG_CONFIG", ""), ("PYTHONPATH", "/nowhere"), ("PATH", "/nowhere")):
        monkeypatch.setenv(name, value)
    yield tmp_path
    sys.modules.pop("module_that_was_brought", None)


@pytest.fixture
def pack(bare):
    """Pack a pretended PostgreSQL, and a package for a Python, into a file; return it."""

    def make(version=VERSION, machine=None):
        source, bindir = bare / "source", bare / "source" / BINDIR
        for folder in (bindir, source / "share" / "extension", source / "packages" / version):
            folder.mkdir(parents=True)
        (source / "share" / "extension" / "plpython3u.control").touch()
        (source / "plpython3.so").touch()
        (source / "packages" / version / "module_that_was_brought.py").write_text("VALUE = 7\n")
        root = 'root=$(cd "${0%/*}/../../../.." && pwd)'
        scripts = {
            "initdb": "",
            "postgres": "echo 'postgres (PostgreSQL) 15.3'",
            "pg_config": f"{root}; case $1 in --sharedir) echo $root/share;; --pkglibdir) echo $root;;"
            f" --bindir) echo $root/{BINDIR};; esac",
        }
        for name, body in scripts.items():
            (bindir / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
            (bindir / name).chmod(0o755)
        packing_list = {"bindir": BINDIR, "machine": machine or platform.machine(), "packages": {version: []}}
        (source / brought.PACKING_LIST).write_text(json.dumps(packing_list))
        packed = bare / "packed.tar.xz"
        with tarfile.open(packed, "w:xz") as archive:
            archive.add(source, ".")
        return packed

    return make


def test_what_was_brought_is_unpacked_and_found_by_this_process_and_its_children(bare, pack):
    found = provide(bare / "here", pack())
    assert found == {
        "postgres": 15,
        "postgres_from": "brought along",
        "packages_from": "brought along: module_that_was_brought",
    }
    import module_that_was_brought

    packages = str(bare / "here" / "brought" / "packages" / VERSION)
    assert module_that_was_brought.VALUE == 7
    assert os.environ["PYTHONPATH"] == f"{packages}:/nowhere"
    assert local_postgres.find_postgres().bindir == bare / "here" / "brought" / BINDIR


def test_this_machines_own_comes_first_and_nothing_is_unpacked(bare, monkeypatch):
    monkeypatch.setattr(brought, "MODULES", ("json",))
    own = local_postgres.PostgresPrograms(version=15, bindir=bare / "bin", has_plpython=True)
    monkeypatch.setattr(brought, "find_postgres", lambda: own)
    found = provide(bare / "here", bare / "missing")
    assert found == {"postgres": 15, "postgres_from": str(bare / "bin"), "packages_from": "installed"}


def test_where_nothing_was_brought_the_refusal_says_what_is_missing_and_how_to_bring_it(bare):
    with pytest.raises(NotInstalled, match=r"no PostgreSQL 14 .*and nothing was brought along") as caught:
        provide(bare / "here", bare / "missing")
    assert "make pack-postgres" in caught.value.hint


def test_packages_for_another_python_are_not_used(bare, pack):
    with pytest.raises(NotInstalled, match=rf"for Python 3\.5, and this is {VERSION}"):
        provide(bare / "here", pack(version="3.5"))


def test_programs_for_another_machine_are_not_started(bare, pack):
    with pytest.raises(NotInstalled, match="is for pdp11"):
        provide(bare / "here", pack(machine="pdp11"))


def test_the_packages_packed_are_what_the_product_needs_beside_pytorch():
    needed = pack_packages.needed()
    assert {"alembic", "mako", "optuna", "psycopg", "psycopg-binary", "sqlalchemy"} <= needed
    assert not needed & {"torch", "numpy", "markupsafe", "nvidia-cublas", "timm", "pytest"}
    assert {name.partition("[")[0] for name in pack_packages.WANTED} == set(brought.MODULES)
