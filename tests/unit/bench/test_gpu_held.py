"""Processes of the GPU bench's sections, which wait for their turn."""

import json
import subprocess
import sys
import time

import pytest

from bench.gpu import held as held_module
from bench.gpu.held import finish, go, held, start


def started(folder, code):
    return start("one", [sys.executable, "-c", code], folder / "log", stdin=subprocess.PIPE)


def test_one_that_goes_hears_how_long_it_has_and_then_that_nothing_more_comes(tmp_path):
    process = started(tmp_path, "import sys; print(sys.stdin.read(), flush=True)")
    go(process, 12.5)
    assert finish(process, 20) == 0
    limit_s, began_s = map(float, (tmp_path / "log").read_text().split())
    assert limit_s == 12.5
    assert began_s <= time.monotonic()


def test_one_that_has_died_before_its_turn_tells_by_its_status(tmp_path):
    process = started(tmp_path, "import sys; sys.exit('it cannot be imported')")
    process.wait(20)
    go(process, 12.5)
    assert finish(process, 20) == 1
    assert (tmp_path / "log").read_text() == "it cannot be imported\n"


@pytest.mark.thorough
def test_a_section_has_imported_all_before_any_goes_and_one_that_never_went_ends(tmp_path):
    settings = ("--device", "cpu", "--quick")
    with held(["formats", "no such section"], settings, tmp_path) as processes:
        waiting, refused = processes.values()
        assert (waiting.poll(), refused.wait(20)) == (None, 2)
    assert waiting.returncode is not None
    assert "invalid choice" in (tmp_path / "no such section.log").read_text()
    assert {path.suffix for path in tmp_path.iterdir()} == {".log"}


@pytest.mark.thorough
def test_a_section_that_went_leaves_its_results(tmp_path, monkeypatch):
    monkeypatch.setattr(held_module, "_IMPORTS_S", 120.0)
    with held(["device"], ("--device", "cpu", "--quick"), tmp_path) as processes:
        go(processes["device"], 60)
        assert finish(processes["device"], 60) == 0
    written = json.loads((tmp_path / "device.json").read_text())
    assert (written["ended"], written["limit_s"], written["failures"]) == (True, 60.0, [])
