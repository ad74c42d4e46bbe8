"""The GPU bench's results: what one piece of work breaks, the others' results survive."""

import json

import pytest

from bench.gpu.report import report
from bench.gpu.results import Results
from bench.gpu.section_capacity import _largest


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


def test_an_ended_section_says_so(path):
    with Results(path, section="s", limit_s=10, facts={}).until_end() as results:
        results.note(spec=1)
    written = json.loads(path.read_text())
    assert (written["ended"], written["spec"]) == (True, 1)


@pytest.mark.parametrize("largest", [0, 1, 15, 16, 17, 100])
def test_the_largest_batch_is_found_within_a_sixteenth(largest):
    found = _largest(lambda size: size <= largest, 16, lambda: True)
    assert found <= largest
    assert largest - found <= max(1, largest // 8)


def test_a_search_without_time_ends():
    assert _largest(lambda size: True, 16, lambda: False) == 0


def test_a_report_sets_goals_beside_what_was_measured_and_names_what_failed(tmp_path):
    eager = {"way": "eager", "time_ns": 1100, "pipelined_ns": 1000, "max_allocated_nbytes": 1000}
    plan = {"way": "auto", "time_ns": 990, "allocated_peak_nbytes": 480, "guaranteed_peak_nbytes": 500}
    entries = [
        eager,
        plan | {"share": 0.5},
        plan | {"share": None, "allocated_peak_nbytes": 900, "guaranteed_peak_nbytes": 900},
        {"way": "checkpoint", "skipped": "the network has no repeated blocks"},
    ]
    results = Results(tmp_path / "single.json", section="single", limit_s=60, facts={})
    for entry in entries:
        results.add({"network": "n", "batch": 16} | entry)
    results.attempt("n 64: eager", 0, lambda: 1 // 0)
    results.attempt("n 64: auto", 100, lambda: 0)
    text = report(tmp_path)
    assert "| n | 16 | auto at 0.5 | 0.00 | 0.990 | 0.480 | 0.960 | 1.0: met |" in text
    assert "| n | 16 | auto | 0.00 | 0.990 | 0.900 | 1.000 | 0.6: missed |" in text
    assert "FAILED in single: n 64: eager: ZeroDivisionError" in text
    assert "Not reached in single: n 64: auto" in text
    assert (tmp_path / "report.md").read_text() == text
    assert (tmp_path / "frontier.svg").read_text().startswith("<?xml")
