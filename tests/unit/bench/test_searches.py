"""Bisection, and small runs of each benchmark: deterministic but for what is measured."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tensile_db.bench import ablations, batch, bounds, capacity, mixed, phases, plan_time, scale
from tensile_db.bench.capacity import largest
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.phases import true_latencies_ns
from tensile_db.bench.points import point, subject
from tensile_db.bench.reports import plots
from tensile_db.bench.reports.plan_time_parts import Part
from tensile_db.bench.reports.results import PICTURES, TABLES, page, read
from tensile_db.cli import app
from tensile_db.errors import InvalidRequest
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies.capuchin import Mechanisms

#: Left out of `make check`.
pytestmark = pytest.mark.slow

A6000 = machine("sim:a6000")
COMMON = {"networks": ["gcn"], "policies": ["vanilla", "tensile"]}


@pytest.mark.parametrize("end", [0, 1, 2, 3, 7, 8, 100, 1023])
@pytest.mark.parametrize("guess", [None, 1, 7, 64, 2000])
def test_the_largest_that_fits_is_found_from_any_guess(end, guess):
    asked = []

    def fits(size):
        asked.append(size)
        return size <= end

    assert largest(fits, guess) == end


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_where_nearly_the_largest_will_do_it_fits_and_is_near(end, guess):
    asked = []

    def fits(size):
        asked.append(size)
        return size <= end

    found = largest(fits, guess, within=0.05)
    assert found <= end < found + max(2, 0.06 * found)
    assert len(asked) <= 24
    assert len(asked) == len(set(asked))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_nothing_larger_than_the_most_is_looked_at(end, guess, most):
    asked = []

    def fits(size):
        asked.append(size)
        return size <= end

    assert largest(fits, guess, most=most) == min(end, most)
    assert max(asked) <= most


def check_reports(document, tmp_path, columns):
    """The tables have these columns, and the pictures can be drawn."""
    head = TABLES[document["bench"]](document)
    assert all(column in head for column in columns)
    draw = PICTURES.get(document["bench"], lambda *_: [])
    assert all(path.read_text().startswith("<?xml") for path in draw(document, tmp_path, "a"))


def test_a_picture_is_the_same_each_time(tmp_path):
    rows = [{"policy": "tensile", "points": [{"msr": 0.1, "eor": 1.0}, {"msr": 0.5, "eor": 1.2}]}]
    drawn = [plots.draw_mixed({"rows": rows}, tmp_path, "a")[0].read_bytes() for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_the_largest_batch_of_a_gcn_on_a_p100(captures, tmp_path):
    document = capacity.run(captures, machine("sim:p100"), optimizer="sgd", of_parameters=False, **COMMON)
    (row,) = document["rows"]
    found = {policy: made["largest"] for policy, made in row["policies"].items()}
    assert (row["bound"], found) == (113, {"vanilla": 85, "tensile": 113})
    check_reports(document, tmp_path, ["largest batch", "times eager's"])


def test_what_is_looked_at_is_added_to_capacities_that_are_known(tmp_path):
    command = ["bench", "capacity", "--device", "sim:p100", "--optimizer", "sgd", "--add"]
    options = ["--out", str(tmp_path), "--cache", str(tmp_path / "captures")]
    for networks, policy, most in (
        ("gcn", "vanilla", 99),
        ("gcn,unet", "vdnn_all", 9),
        ("gcn", "tensile", 90),
    ):
        asked = ["--networks", networks, "--policies", policy, "--most", str(most)]
        assert CliRunner().invoke(app, [*command, *options, *asked]).exit_code == 0
    document = read(tmp_path / "capacity_p100.json")
    gcn, unet = document["rows"]
    assert document["workload"]["networks"] == ["gcn", "unet"]
    assert [list(row["policies"]) for row in (gcn, unet)] == [
        ["vanilla", "vdnn_all", "tensile"],
        ["vdnn_all"],
    ]
    assert (gcn["policies"]["vanilla"]["largest"], gcn["policies"]["tensile"]["largest"]) == (85, 90)
    text, made = page(document, []), unet["policies"]["vdnn_all"]["made"]
    assert "| U-Net | vdnn_all | 9 or more |" in text
    assert f"GCN, U-Net (vdnn_all): made by `{made['command']}`, {made['at']}." in text
    assert "GCN (tensile)" not in text


def test_capacities_are_added_to_those_of_the_same_question_alone(tmp_path):
    command = ["bench", "capacity", "--device", "sim:p100", "--networks", "gcn", "--policies", "vanilla"]
    command += ["--most", "3", "--out", str(tmp_path), "--cache", str(tmp_path / "captures")]
    assert CliRunner().invoke(app, [*command, "--optimizer", "sgd"]).exit_code == 0
    before = read(tmp_path / "capacity_p100.json")
    for other in (["--optimizer", "sgd", "--parameters"], ["--optimizer", "adam"]):
        refused = CliRunner().invoke(app, [*command, *other, "--add"])
        assert refused.exit_code == 1
        assert "Give the new results a --name of their own." in refused.stderr
    assert read(tmp_path / "capacity_p100.json") == before


@pytest.mark.parametrize("only", Part)
def test_re_plans_and_first_plans_stand_beside_those_of_the_same_question_alone(captures, only):
    known = {"device": asdict(A6000), "workload": {"optimizer": "adam", "batch": 4}}
    for change in ({"batch": 2}, {"optimizer": "sgd"}, {"device": replace(A6000, memory_nbytes=1)}):
        asked = {"device": A6000, "batch": 4, "optimizer": "adam"} | change
        with pytest.raises(InvalidRequest):
            plan_time.run(captures, **asked, known=known, only=only, networks=["gcn"], policies=["auto"])


def test_the_largest_parameter_scale(captures, tmp_path):
    document = capacity.run(
        captures,
        machine("sim:p100"),
        networks=["gcn"],
        policies=["vanilla"],
        optimizer="sgd",
        of_parameters=True,
    )
    assert document["rows"][0]["policies"]["vanilla"]["largest"] == 5
    check_reports(document, tmp_path, ["largest parameter scale at batch 16"])


def test_batches_by_share_and_within_memory(captures, tmp_path):
    for within_memory in (False, True):
        document = batch.run(
            captures, A6000, batches=[4, 8], optimizer="adam", within_memory=within_memory, **COMMON
        )
        assert len(document["rows"]) == 4
        check_reports(document, tmp_path, ["batch 4", "batch 8"])


def test_equal_jobs_and_mixed_ones(captures, tmp_path):
    document = scale.run(captures, A6000, batch=2, optimizer="adam", counts=(1, 2), shares=(0.9,), **COMMON)
    assert [row["best"]["eor"] for row in document["rows"] if row["policy"] == "vanilla"] == [1.0, 1.0]
    check_reports(document, tmp_path, ["jobs", "MSR"])
    document = mixed.run(
        captures,
        A6000,
        networks=["gcn", "unet"],
        policies=["tensile"],
        batch=2,
        optimizer="adam",
        seeds=(1, 5),
        shares=(0.6,),
    )
    assert document["orders"] == {"1": ["unet", "gcn"], "5": ["gcn", "unet"]}
    check_reports(document, tmp_path, ["policy", "MSR, EOR at 60%"])


def test_the_machine_is_not_as_predicted_by_about_the_predictors_error(captures):
    graph = captures.graph(workload("unet"), 2, "adam")
    predicted = [1_000_000] * len(graph.ops)
    errors = sorted(abs(ns / 1e6 - 1) for ns in true_latencies_ns(graph, predicted, 1))
    assert 0.15 < errors[len(errors) // 2] < 0.4
    assert true_latencies_ns(graph, predicted, 1) == true_latencies_ns(graph, predicted, 1)


def test_a_machine_that_is_as_predicted_has_no_phases(captures, monkeypatch):
    monkeypatch.setattr(phases, "KIND_ERROR", 0.0)
    monkeypatch.setattr(phases, "OP_ERROR", 0.0)
    document = phases.run(
        captures, A6000, networks=["unet"], policies=["tensile"], batch=2, optimizer="adam", seed=1
    )
    made = document["rows"][0]["policies"]["tensile"]
    assert made["cold start"]["msr"] == made["updated"]["msr"] == made["whole"]["msr"]
    assert made["updated"]["eor"] == pytest.approx(made["cold start"]["eor"], rel=0.02)


def test_phases_and_the_first_iteration(captures, tmp_path):
    common = {"networks": ["unet"], "policies": ["tensile"], "batch": 2, "optimizer": "adam", "seed": 1}
    document = phases.run(captures, A6000, **common)
    check_reports(document, tmp_path, ["cold start", "updated", "whole"])
    document = phases.run(captures, A6000, only_first=True, **common)
    (row,) = document["rows"]
    assert row["policies"]["tensile"]["eor"] < row["passive_eor"]
    check_reports(document, tmp_path, ["Capuchin, passive mode"])


def test_planning_is_timed_in_a_process_of_its_own(captures, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_time, "SHARES", (None,))
    settings = {"networks": ["gcn"], "policies": ["tensile"], "batch": 2, "optimizer": "adam", "rounds": 1}
    document = plan_time.run(captures, A6000, curve_ops=(700,), **settings)
    assert [row["policy"] for row in document["curve"]] == ["tensile"]
    assert 400 < document["curve"][0]["ops"] < 800
    assert all(row["seconds"] > 0 for row in document["curve"])
    check_reports(document, tmp_path, ["ops", "seconds"])
    origin = {"machine": {"processor": "An Abacus"}, "versions": {}}
    # What stays says by what it was made, also when re-plans are measured once more.
    for command in ("the first", "the second"):
        known = document | {"command": command, "at": "then"} | origin
        document = plan_time.run(captures, A6000, known=known, only=Part.AGAIN, **settings)
        assert (document["rows"], document["curve"]) == (known["rows"], known["curve"])
    assert document["kept"] == {"part": "first", "command": "the first", "at": "then"} | origin
    check_reports(document, tmp_path, ["All but the re-plans: `the first`, then, An Abacus."])


def test_bounds_by_share(captures, tmp_path):
    document = bounds.run(captures, A6000, networks=["gcn"], batch=2, optimizer="adam", shares=(0.9,))
    ample, least = (point["eor"] for point in document["rows"][0]["bound"])
    # Codes of what dropout draws save a little more time than they cost.
    assert 0.98 < ample < 1.0 < least
    check_reports(document, tmp_path, ["EOR at 90%", "at the least peak"])


def test_capuchins_mechanisms_one_by_one(captures, tmp_path, monkeypatch):
    steps = {"recomputation": Mechanisms(swap=False), "and swaps": Mechanisms()}
    monkeypatch.setattr(
        ablations, "_FIGURES", (("vgg16", (384,), "vdnn_conv", steps, {384: {"recomputation": 0.5}}),)
    )
    document = ablations.run(captures, machine("sim:titanrtx"), optimizer="momentum")
    _, recomputation, both = document["rows"]
    job = subject(captures.graph(workload("vgg16"), 384, "momentum"), machine("sim:titanrtx"))
    whole = point(job, "capuchin", job.device.memory_nbytes)
    # All mechanisms are the policy; the plan's delays are settled in one and not in the other.
    assert both["time_ns"] == pytest.approx(whole["time_ns"], rel=0.01)
    assert recomputation["time_ns"] > both["time_ns"]
    check_reports(document, tmp_path, ["faster than the one above", "+50.0%"])
