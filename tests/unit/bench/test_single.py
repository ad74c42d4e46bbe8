"""`bench single` on a simulated machine: deterministic, so its figures are literal."""

import json
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from tensile_db.bench import points as bench_points
from tensile_db.bench import single
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import best, eor_at, point, subject, sweep, with_neighbours
from tensile_db.bench.reports import single as single_report
from tensile_db.cli import app
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import POLICIES, SPLITTING, UNBUDGETED

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

A6000 = machine("sim:a6000")


@pytest.fixture(scope="module")
def vgg16(captures):
    return subject(captures.graph(workload("vgg16"), 16, "adam"), A6000)


def test_eager_peak_and_time_of_vgg16(vgg16):
    # 138 million parameters and their gradients and two Adam slots are 2.06 GiB of it.
    assert (vgg16.eager_peak_nbytes, vgg16.eager_ns) == (3_361_713_540, 84_394_502)


def test_vanilla_saves_nothing_and_costs_nothing(vgg16):
    found = point(vgg16, "vanilla", None)
    assert (found["msr"], found["eor"], found["cbr"]) == (0.0, 1.0, 0.0)


def test_a_policy_that_cannot_plan_a_network_says_why(captures):
    job = subject(captures.graph(workload("gcn"), 2, "adam"), A6000)
    assert "this network has none" in point(job, "vdnn_conv", None)["refused"]


def test_a_budget_below_the_bound_is_refused_with_what_is_needed(vgg16):
    found = point(vgg16, "tensile", vgg16.least_nbytes - 1)
    assert found["needed_nbytes"] == vgg16.least_nbytes == 616_857_856


def test_a_sweep_keeps_every_budget_down_to_the_least(vgg16):
    points = sweep(vgg16, "tensile", (0.8, 0.5, 0.1))
    assert [round(entry["share"], 3) for entry in points] == [0.8, 0.5, 0.183]
    assert all(entry["guaranteed_peak_nbytes"] <= entry["budget_nbytes"] for entry in points)


@pytest.fixture(scope="module")
def gcn(captures):
    return subject(captures.graph(workload("gcn"), 16, "adam"), A6000)


@pytest.mark.parametrize("policy", ["auto", "tsplit"])
def test_policies_that_split_are_swept_below_what_whole_ops_need_until_they_refuse(gcn, policy, monkeypatch):
    monkeypatch.setattr(bench_points, "_NEIGHBOURS", (-0.02, 0.02))
    points = sweep(gcn, policy, (0.9, 0.7, 0.5, 0.02, 0.01))
    assert [round(entry["share"], 2) for entry in points] == [0.9, 0.75, 0.7, 0.5, 0.02]
    assert ["refused" in entry for entry in points] == [False] * 4 + [True]
    assert points[3]["guaranteed_peak_nbytes"] <= points[3]["budget_nbytes"] < gcn.least_nbytes
    around = with_neighbours(gcn, policy, points[:4])
    assert min(entry["budget_nbytes"] for entry in around) < points[3]["budget_nbytes"]


def test_policies_that_do_not_split_need_what_the_largest_op_does(gcn):
    made = {policy for policy in POLICIES if "eor" in point(gcn, policy, gcn.least_nbytes - 1)}
    assert made - UNBUDGETED == SPLITTING


def test_fixed_policies_are_those_that_plan_the_same_for_any_budget(captures):
    job = subject(captures.graph(workload("unet"), 2, "adam"), A6000)
    half = job.eager_peak_nbytes // 2
    for policy in POLICIES:
        found = point(job, policy, half)
        heeds_it = found.get("guaranteed_peak_nbytes", half + 1) <= half
        assert heeds_it or policy in UNBUDGETED


def test_the_best_point_and_the_cheapest_one_that_saves_enough():
    points = [
        {"msr": 0.3, "eor": 1.0, "cbr": 0.3},
        {"msr": 0.6, "eor": 1.2, "cbr": 0.5},
        {"msr": 0.8, "eor": 2.0, "cbr": 0.4},
        {"refused": "no"},
    ]
    assert best(points) == points[1]
    assert [eor_at(points, msr) for msr in (0.2, 0.5, 0.7, 0.9)] == [1.0, 1.2, 2.0, None]


def test_the_bound_is_below_every_plan(captures):
    document = single.run(
        captures, A6000, networks=["gcn"], policies=["tensile"], batch=16, optimizer="adam", shares=(0.9, 0.8)
    )
    (network,) = document["networks"]
    plans = {plan["budget_nbytes"]: plan for plan in network["policies"]["tensile"]["points"]}
    assert len(network["bound"]) == 3
    assert all(bound["time_ns"] <= plans[bound["budget_nbytes"]]["time_ns"] for bound in network["bound"])


def test_the_best_rate_is_looked_for_around_the_best_of_the_budgets_asked_for(vgg16):
    points = sweep(vgg16, "tensile", (0.8, 0.5))
    more = with_neighbours(vgg16, "tensile", points)
    budgets = [entry["budget_nbytes"] for entry in more]
    assert budgets == sorted(budgets, reverse=True)
    assert {entry["budget_nbytes"] for entry in points} < set(budgets)
    assert best(more)["cbr"] >= best(points)["cbr"]
    assert min(budgets) == vgg16.least_nbytes


def test_a_budget_that_was_asked_for_is_planned_for_once(vgg16):
    points = sweep(vgg16, "tensile", (0.56, 0.54, 0.52, 0.5))
    budgets = [entry["budget_nbytes"] for entry in with_neighbours(vgg16, "tensile", points)]
    assert len(budgets) > len(points)
    assert all(larger - smaller > 1 for larger, smaller in pairwise(budgets))


def test_a_policy_without_a_budget_has_no_neighbours(vgg16):
    points = sweep(vgg16, "vdnn_all", (0.5,))
    assert with_neighbours(vgg16, "vdnn_all", points) == points


def test_the_command_plans_for_the_budgets_that_it_is_given(tmp_path):
    called = [
        *("bench", "single", "--networks", "gcn", "--policies", "tensile", "--batch-size", "2"),
        *("--no-bound", "--out", str(tmp_path), "--budgets"),
    ]
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    result = runner.invoke(app, [*called, "85,95,7,5"])
    assert result.exit_code == 0, result.output
    (network,) = json.loads((tmp_path / "single_a6000.json").read_text())["networks"]
    shares = {point["share"] for point in network["policies"]["tensile"]["points"]}
    assert {0.85, 0.95} < shares
    least = "No policy has a plan of GCN within 7, 5 % of eager's peak; plans of whole ops need "
    assert least in (tmp_path / "single_a6000.md").read_text()
    assert shares.isdisjoint({0.2, 0.5, 0.8})
    assert "of budgets of 95, 85, 7, 5 % of eager's peak" in result.output
    assert 'is "half"' in runner.invoke(app, [*called, "half"]).output


def test_the_command_writes_json_tables_and_pictures(tmp_path, monkeypatch):
    called = [
        *("bench", "single", "--networks", "gcn", "--policies", "vanilla,tensile"),
        *("--batch-size", "2", "--no-bound", "--out", str(tmp_path)),
    ]
    monkeypatch.setattr("sys.argv", ["tensile-db", *called])
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, called)
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "single_a6000.json",
        "single_a6000.md",
        "single_a6000_frontier.svg",
        "single_a6000_memory.svg",
    ]
    document = json.loads((tmp_path / "single_a6000.json").read_text())
    # But for where it writes.
    assert document["command"] == f"tensile-db {' '.join(called[:-2])}"
    assert {"machine", "versions", "workload", "device"} <= document.keys()
    assert single_report.markdown(document) in result.output
