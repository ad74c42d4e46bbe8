"""The GPU bench's results: what one piece of work breaks, the others' results survive."""

import json
import shutil
import signal
import sys
import time

import pytest

from bench.gpu import section_correctness, section_product
from bench.gpu.frontier import is_planned
from bench.gpu.held import finish, start
from bench.gpu.networks import find
from bench.gpu.report import report
from bench.gpu.results import Results
from bench.gpu.section_capacity import _largest
from bench.results import RESULTS
from tensile_db.errors import NotInstalled


@pytest.fixture
def path(tmp_path):
    return tmp_path / "section.json"


def test_a_failure_is_written_down_and_the_next_piece_runs(path):
    results = Results(path, section="s", limit_s=60, facts={"machine": "m"})
    assert results.attempt("bad", 0, lambda: 1 // 0) is None
    results.add({"value": results.attempt("good", 0, lambda: 7)})
    written = json.loads(path.read_text())
    assert written["failures"][0]["name"] == "bad"
    assert "ZeroDivisionError" in written["failures"][0]["error"]
    assert "test_gpu_results.py" in written["failures"][0]["traceback"]
    assert written["entries"] == [{"value": 7}]
    assert (written["machine"], written["ended"]) == ("m", False)


def test_what_there_is_no_time_for_is_named_and_not_begun(path):
    results = Results(path, section="s", limit_s=10, facts={})
    assert results.attempt("long", 11, lambda: pytest.fail("there was no time")) is None
    assert json.loads(path.read_text())["not_reached"] == ["long"]


def test_a_section_has_its_time_from_when_it_was_started(path):
    results = Results(path, section="s", limit_s=10, facts={}, began_s=time.monotonic() - 7)
    assert 2.5 < results.left_s <= 3
    assert results.attempt("long", 4, lambda: pytest.fail("there was no time")) is None
    assert json.loads(path.read_text())["took_s"] >= 7


def test_what_another_process_found_is_added(path, tmp_path):
    part = Results(tmp_path / "part.json", section="s", limit_s=10, facts={"machine": "other"})
    part.add({"value": 2})
    part.attempt("bad", 0, lambda: 1 // 0)
    part.attempt("long", 11, lambda: 0)
    results = Results(path, section="s", limit_s=60, facts={"machine": "m"})
    results.add({"value": 1})
    results.merge(json.loads(part.path.read_text()))
    written = json.loads(path.read_text())
    assert written["entries"] == [{"value": 1}, {"value": 2}]
    assert [failure["name"] for failure in written["failures"]] == ["bad"]
    assert (written["not_reached"], written["machine"]) == (["long"], "m")


def test_an_ended_section_says_so(path):
    with Results(path, section="s", limit_s=10, facts={}).until_end() as results:
        results.note(spec=1)
    written = json.loads(path.read_text())
    assert (written["ended"], written["spec"]) == (True, 1)


class Opened:
    """A device, and the machine that opens it."""

    closed = False

    def open(self, **_):
        return self

    def close(self):
        self.closed = True


def test_a_network_that_there_is_no_time_to_compare_leaves_no_device_open(path):
    results, machine = Results(path, section="s", limit_s=0, facts={}), Opened()
    section_correctness._compare_network(machine, results, find("resnet50"), 4)
    assert machine.closed
    assert json.loads(path.read_text())["not_reached"] == ["resnet50: capture"]


@pytest.mark.parametrize("largest", [0, 1, 15, 16, 17, 100])
def test_the_largest_batch_is_found_within_a_sixteenth(largest):
    found = _largest(lambda size: size <= largest, 16, lambda: True)
    assert found <= largest
    assert largest - found <= max(1, largest // 8)


def test_a_search_without_time_ends():
    assert _largest(lambda size: True, 16, lambda: False) == 0


def test_a_report_sets_goals_beside_what_was_measured_and_names_what_failed(tmp_path):
    eager = {"way": "eager", "time_ns": 1100, "pipelined_ns": 1000, "max_allocated_nbytes": 1000}
    plan = {"way": "auto", "time_ns": 990, "budget_nbytes": 500, "reserved_peak_nbytes": 500, "bound_ns": 950}
    plan |= {"account_peak_nbytes": 480, "allocated_peak_nbytes": 300, "replayed": 10}
    plainly = plan | {"replayed": 0, "allocated_peak_nbytes": 900, "budget_nbytes": 900}
    entries = [
        eager,
        plan | {"share": 0.5},
        plan | {"share": 0.4, "steered": True, "astray": 0},
        plan | {"share": 0.3, "steered": True, "astray": 2},
        plainly | {"share": None},
        plainly | {"share": None, "way": "auto, op by op"},
        {"way": "checkpoint", "skipped": "the network has no repeated blocks"},
    ]
    results = Results(tmp_path / "single.json", section="single", limit_s=60, facts={})
    for entry in entries:
        results.add({"network": "n", "batch": 16} | entry)
    results.attempt("n 64: eager", 0, lambda: 1 // 0)
    results.attempt("n 64: auto", 100, lambda: 0)
    text = report(tmp_path)
    assert "| auto at 0.4, steered |" in text
    assert "| auto at 0.3, steered, 2 times elsewhere |" in text
    assert "| n | 16 | auto at 0.5 | 0.00 | 0.990 | 0.480 | 0.960 | 1.042 | 0.960 | 1.0: met |" in text
    assert (
        "| n | 16 | auto, not replayed | 0.00 | 0.990 | 0.900 | 1.000 | 0.556 | 0.960 | 0.6: missed |" in text
    )
    assert "| n | 16 | auto, op by op | 0.00 | 0.990 | 0.900 | 1.000 | 0.556 | 0.960 |  |" in text
    assert "FAILED in single: n 64: eager: ZeroDivisionError" in text
    assert "Not reached in single: n 64: auto" in text
    assert (tmp_path / "report.md").read_text() == text
    assert (tmp_path / "frontier.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("machine", ["h100", "h200"])
def test_the_committed_reports_are_made_from_the_committed_results(tmp_path, machine):
    committed = RESULTS / machine
    for path in committed.glob("*.json"):
        shutil.copy(path, tmp_path)
    assert report(tmp_path) == (committed / "report.md").read_text()


@pytest.mark.parametrize(
    ("way", "ours"),
    [
        ("auto", True),
        ("auto, op by op", True),
        ("vanilla, op by op", True),
        ("eager", False),
        ("checkpoint", False),
        ("compile(0.5)", False),
    ],
)
def test_plans_are_drawn_apart_from_what_pytorch_offers_however_they_are_run(way, ours):
    assert is_planned({"way": way}) is ours


def test_a_report_sets_precisions_beside_eager_in_the_same_and_in_float32(tmp_path):
    results = Results(tmp_path / "formats.json", section="formats", limit_s=60, facts={})
    case = {"network": "n", "batch": 64, "memory_format": "contiguous"}
    eager = {"way": "eager", "pipelined_ns": 2000, "time_ns": 2000, "max_allocated_nbytes": 1000}
    halved = eager | {"precision": "bfloat16", "pipelined_ns": 1000, "max_allocated_nbytes": 600}
    auto = {"way": "auto", "share": 0.5, "time_ns": 900, "allocated_peak_nbytes": 300}
    refused = {"way": "auto", "share": None, "refused": "no"}
    for entry in (
        eager | {"precision": "float32"},
        halved,
        *(each | {"precision": "bfloat16"} for each in (auto, refused)),
    ):
        results.add(case | entry)
    text = report(tmp_path)
    assert "| float32 | contiguous | eager | 0.00 | 1.000 | 1.000 | 1.000 |" in text
    assert "| bfloat16 | contiguous | eager | 0.00 | 1.000 | 0.500 | 1.000 |" in text
    assert "| bfloat16 | contiguous | auto at 0.5 | 0.00 | 0.900 | 0.450 | 0.500 |" in text
    assert "refused" not in text


#: What is told to end, and says so before it does.
ENDING = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
try:
    pathlib.Path(sys.argv[1], "began").touch()
    time.sleep(60)
finally:
    pathlib.Path(sys.argv[1], "tidied").touch()
"""


@pytest.mark.slow
def test_a_section_out_of_time_is_told_to_end_and_tidies_up(tmp_path):
    process = start("one", [sys.executable, "-c", ENDING, str(tmp_path)], tmp_path / "log")
    status = finish(process, 3.0)
    assert status == 124
    assert {path.name for path in tmp_path.iterdir()} == {"began", "tidied", "log"}


def test_without_postgresql_the_section_says_so_and_is_over(tmp_path, monkeypatch):
    def provide(folder):
        raise NotInstalled("no PostgreSQL is installed", hint="Bring one.")

    monkeypatch.setattr(section_product.brought, "provide", provide)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    with Results(tmp_path / "product.json", section="product", limit_s=60, facts={}).until_end() as results:
        section_product.run(None, results, quick=True)
    written = json.loads((tmp_path / "product.json").read_text())
    assert (written["ended"], written["failures"], written["entries"]) == (True, [], [])
    assert "Not run: no PostgreSQL is installed.  Bring one." in report(tmp_path)


def test_a_report_sets_trainings_from_sql_beside_their_limits_and_eager(tmp_path):
    results = Results(tmp_path / "product.json", section="product", limit_s=60, facts={})
    entry = {
        "network": "n",
        "memory_limit_nbytes": 500,
        "over_eager_peak": 0.49,
        "within": True,
        "attempt": 2,
    }
    compared = {"equal": False, "differing": 3, "of": 9, "eager_differs_from_itself": 0}
    results.add(entry | compared | {"way": "killed", "iteration_ns": 3000000, "eager_iteration_ns": 2000000})
    # Eager failed.
    results.add(entry | {"way": "alone", "memory_limit_nbytes": None, "iteration_ns": 3000000})
    results.add({"way": "predicted", "network": "n", "rows": 8, "as_eager": 7})
    text = report(tmp_path)
    assert "| killed | n | 500 | 0.490 | 3.00 | 1.500 | True | 2 | False | 3 | 9 | 0 |" in text
    assert "| alone | n |  | 0.490 | 3.00 |  | True | 2 |  |  |  |  |" in text
    assert "predicted: 7 of 8 rows as eager predicts them" in text
