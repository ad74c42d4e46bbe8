"""The GPU bench's results: what one piece of work breaks, the others' results survive."""

import json

import pytest

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
