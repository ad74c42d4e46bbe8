"""Modules of one's own, from which commands take policies and networks; nothing of them stays behind."""

import sys

import pytest

from tensile_db.bench.networks import workloads
from tensile_db.scheduler.policies import POLICIES


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Write modules into the folder that commands run in: their text, and their name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(workloads, "_added", {})
    known, modules, written = dict(POLICIES), {*sys.modules}, []

    def write(text, name="mine"):
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    POLICIES.clear()
    POLICIES.update(known)
    for name in {*written} - modules:
        sys.modules.pop(name, None)
