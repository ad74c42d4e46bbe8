"""Small graphs beside the best plans: what is committed comes out again, and nothing is faster."""

from pathlib import Path

import pytest

from tensile_db.bench import exact
from tensile_db.bench.reports.results import read

RESULTS = Path("bench/results")
#: Left out of `make check`.
pytestmark = pytest.mark.slow


def test_the_committed_results_come_out_again():
    committed = read(RESULTS / "exact.json")
    made = exact.run(policies=committed["policies"], graphs=6, seed=committed["seed"])
    assert made["rows"] == committed["rows"][:6]


def test_auto_is_as_fast_as_the_best_plan_of_nearly_every_small_graph():
    rows = read(RESULTS / "exact.json")["rows"]
    assert len(rows) == 100
    ratios = [row["policies"]["auto"] / row["best_ns"] for row in rows]
    assert sum(ratio <= 1 for ratio in ratios) >= 0.99 * len(rows)
    assert max(ratios) < 1.06
    assert all(row["ops_ns"] <= row["bound_ns"] <= row["best_ns"] for row in rows)


def test_no_policys_plan_is_faster_than_the_best():
    for row in read(RESULTS / "exact.json")["rows"]:
        assert min(made for made in row["policies"].values() if made is not None) >= row["best_ns"]


def test_a_policy_that_has_no_plan_has_no_row():
    document = exact.run(policies=["vanilla", "auto"], graphs=2, seed=3)
    assert [row["policies"]["vanilla"] for row in document["rows"]] == [None, None]
    table = exact.markdown(document).splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == ["| `auto`", "| the bound"]
