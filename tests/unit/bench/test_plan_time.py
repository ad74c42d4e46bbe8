"""How long planning takes: what is measured, and how it is told."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tensile_db.bench import plan_time, planned_alone
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.planned_alone import Change, measure
from tensile_db.bench.planned_arrival import measure_arrival
from tensile_db.bench.reports.plan_time import markdown
from tensile_db.bench.reports.plan_time_parts import Part
from tensile_db.bench.reports.results import read
from tensile_db.cli import app
from tensile_db.commands import bench_options
from tensile_db.scheduler.machines import machine
from tests.examples import one_in
from tests.steps.captured_steps import captured_step
from tests.steps.small_step import small_step

DEVICE = machine("sim:a6000")


@pytest.fixture
def asked(monkeypatch):
    """The requests of each planning."""
    plannings = []
    plan_jobs = planned_alone.plan_jobs
    monkeypatch.setattr(
        planned_alone,
        "plan_jobs",
        lambda jobs, *within: plannings.append(jobs) or plan_jobs(jobs, *within),
    )
    return plannings


def test_first_plans_are_of_graphs_that_nothing_is_known_of(asked):
    graph = small_step().graph
    measure([graph], DEVICE, "auto", 0.9, 2)
    rounds = [job.graph for (job,) in asked[:2]]
    assert rounds == [graph, graph]
    assert len({id(one) for one in (graph, *rounds)}) == 3
    assert all(job.former is None for (job,) in asked)


@pytest.mark.parametrize("at_once", [False, True])
def test_first_plans_are_made_with_care_or_as_somebody_waits_for_them(asked, at_once):
    measure([small_step().graph], DEVICE, "auto", 0.9, 1, at_once=at_once)
    assert {(job.at_once, job.hurried) for (job,) in asked} == {(at_once, at_once)}


@pytest.mark.parametrize("change", Change)
def test_re_plans_begin_with_the_plans_in_force_and_are_compared_with_first_plans(asked, change):
    made = measure([small_step().graph] * 2, DEVICE, "auto", 0.9, 1, change)
    before, fresh, again, begun, timed, measured = asked
    assert all(job.former is None for job in (*before, *fresh, *begun))
    assert all(job.former is not None for job in (*again, *timed, *measured))
    # Of a graph that the first plans alone were made of.
    assert {id(job.graph) for job in begun} == {id(job.graph) for job in timed}
    assert not {id(job.graph) for job in timed} & {id(job.graph) for job in before}
    drifted = [job.latencies_ns for job in fresh] != [job.latencies_ns for job in before]
    assert drifted == (change is Change.DRIFT)
    assert made["slower"] >= 0.9


def test_the_report_tells_first_plans_from_re_plans():
    figures = {"policy": "auto", "seconds": 0.1, "memory_nbytes": 2**31, "msr": 0.5, "eor": 1.25}
    row = {"network": "resnet50", "share": None} | figures
    arrived = {"newcomer": "vgg16", "running": 4, "share": 0.2, "seconds": 0.07, "beside": True}
    arrived |= {"slowdown": 1.1, "mended_s": 2.0, "mended": 0.95, "careful_s": 3.0, "careful": 0.96}
    arrived |= {"foreseen_s": 0.125, "splits_s": 1.5}
    again = row | {"change": "arrival", "seconds": 0.02, "slower": 1.1, "improved_s": 2.5, "improved": 1.01}
    at_once = row | {"at_once": True, "seconds": 0.05}
    document = {"rows": [at_once, row], "again": [again], "curve": [{"ops": 1000} | figures]}
    page = markdown(document | {"arrived": [arrived]})
    assert "| ResNet-50 | ample | auto | 0.100 | 2,048.0 | 0.500 | 1.250 |" in page
    assert "| ResNet-50 | ample | auto, at once | 0.050 | 2,048.0 | 0.500 | 1.250 |" in page
    assert (
        "| ResNet-50 | a fifth less memory | auto | 0.020 | 2,048.0 | 0.500 | 1.250 | 1.100 | 2.500 | 1.010 |"
        in page
    )
    assert (
        "| VGG-16 | one of each of 4 others | 20% of eager's peaks | 0.070 | yes | 1.100 | 2.000 | 0.950"
        " | 3.000 | 0.960 | 0.125 | 1.500 |" in page
    )
    assert "newcomer" not in markdown(document)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"share": None, "given": 3.5}, "ample"),
        ({"share": 0.35}, "35% of eager's peak"),
        ({"share": 0.35, "given": 0.3499}, "35% of eager's peak"),
        ({"share": 0.35, "given": 0.4473}, "44.7% of eager's peak (asked: 35%)"),
    ],
)
def test_a_first_plan_says_what_it_was_made_within(asked, said):
    row = {"network": "mlp", "policy": "tensile", "seconds": 0.1, "memory_nbytes": 2**20, "msr": 0, "eor": 1}
    page = markdown({"rows": [row | asked], "again": [], "curve": []})
    assert f"| {said} | tensile | 0.100 | 1.0 | 0 | 1 |" in page


MADE = {"machine": {"processor": "An Abacus"}, "versions": {"python": "3.11.7"}}


@pytest.mark.parametrize(
    ("kept", "arrived", "said"),
    [
        ({}, True, "All but re-plans and arrivals: `the first`, then."),
        ({}, False, "All but the re-plans: `the first`, then."),
        ({"part": "first"} | MADE, True, "All but re-plans and arrivals: `the first`, then, An Abacus."),
        ({"part": "again"} | MADE, True, "Re-plans and arrivals: `the first`, then, An Abacus."),
        ({"part": "again"} | MADE, False, "The re-plans: `the first`, then, An Abacus."),
    ],
)
def test_the_report_begins_with_which_results_stayed_and_of_which_run(kept, arrived, said):
    document = {"rows": [], "again": [], "curve": []} | ({"arrived": []} if arrived else {})
    page = markdown(document | {"kept": {"command": "the first", "at": "then"} | kept})
    assert page.startswith(f"{said}\n\n| network |")


FIRST, AGAIN = ("rows", "curve"), ("again", "arrived")


@pytest.fixture
def measured(monkeypatch):
    """Runs the benchmark of a small step; what is measured takes so many seconds as are asked for."""
    graph = small_step().graph

    def run(seconds, **asked):
        figures = {"seconds": seconds, "memory_nbytes": 1, "msr": 0.5, "eor": 1.0}
        monkeypatch.setattr(plan_time, "_apart", lambda *_: figures)
        settings = {"networks": ["gcn"], "policies": ["auto"], "batch": 2, "optimizer": "adam"}
        captures = SimpleNamespace(graph=lambda *_: graph)
        return plan_time.run(captures, DEVICE, curve_ops=(700,), **settings, **asked)

    return run


def made_by(command, document):
    """Return the document as the command would have written it."""
    return {"command": command, "at": f"{command}'s end"} | MADE | document


def seconds_of(document, names):
    return {row["seconds"] for name in names for row in document[name]}


@pytest.mark.parametrize(
    ("only", "newer", "older", "kept"),
    [(Part.FIRST, FIRST, AGAIN, "again"), (Part.AGAIN, AGAIN, FIRST, "first")],
)
def test_one_part_is_measured_alone_and_the_other_stays_with_the_run_that_made_it(
    measured, only, newer, older, kept
):
    known = made_by("the first", measured(1.0))
    document = measured(2.0, known=known, only=only)
    assert seconds_of(document, newer) == {2.0}
    assert [document[name] for name in older] == [known[name] for name in older]
    assert document["kept"] == {"part": kept, "command": "the first", "at": "the first's end"} | MADE
    # In the order of all results, so that a part that is measured again changes its own lines alone.
    assert list(document) == [*measured(1.0), "kept"]


def test_what_stays_is_of_the_newest_run_that_measured_it(measured):
    document = made_by("whole", measured(1.0))
    kept = []
    for command, only in (
        ("again", Part.AGAIN),
        ("again once more", Part.AGAIN),
        ("first", Part.FIRST),
        ("first once more", Part.FIRST),
        ("again at last", Part.AGAIN),
    ):
        document = made_by(command, measured(2.0, known=document, only=only))
        kept.append((document["kept"]["part"], document["kept"]["command"]))
    assert kept == [
        ("first", "whole"),
        ("first", "whole"),
        ("again", "again once more"),
        ("again", "again once more"),
        ("first", "first once more"),
    ]


def test_where_older_results_do_not_say_what_stayed_it_was_first_plans(measured):
    before = {"command": "the first", "at": "then"}
    known = made_by("the second", measured(1.0)) | {"kept": before}
    assert measured(2.0, known=known, only=Part.AGAIN)["kept"] == before
    kept = measured(2.0, known=known, only=Part.FIRST)["kept"]
    assert (kept["part"], kept["command"]) == ("again", "the second")


@pytest.mark.parametrize(("only", "missing"), [(Part.FIRST, AGAIN), (Part.AGAIN, FIRST)])
def test_all_is_measured_where_nothing_is_there_that_could_stay(measured, only, missing):
    whole = measured(1.0)
    assert measured(1.0, known=None, only=only) == whole
    before = made_by("the first", measured(2.0))
    known = {name: each for name, each in before.items() if name not in missing}
    assert measured(1.0, known=known, only=only) == whole


@pytest.mark.slow
@pytest.mark.parametrize(("option", "newer", "older"), [("first", FIRST, AGAIN), ("again", AGAIN, FIRST)])
def test_the_command_measures_one_part_alone(monkeypatch, tmp_path, option, newer, older):
    # All that planning and arrivals are told by.
    names = ("memory_nbytes", "msr", "eor", "slowdown", "mended_s", "mended", "careful_s", "careful")
    figures = dict.fromkeys(names, 1.0) | {"beside": True}
    captures = SimpleNamespace(graph=lambda *_: small_step().graph)
    monkeypatch.setattr(bench_options, "captures", lambda *_: captures)
    arguments = ["bench", "plan-time", "--networks", "gcn", "--policies", "auto", "--out", str(tmp_path)]
    for seconds, options in ((1.0, ()), (2.0, (f"--only-{option}",))):
        made = figures | {"seconds": seconds}
        monkeypatch.setattr(plan_time, "_apart", lambda *_, made=made: made)
        monkeypatch.setattr("sys.argv", ["tensile-db", *arguments, *options])
        result = CliRunner().invoke(app, [*arguments, *options])
        assert result.exit_code == 0, result.output
    # What was replaced is not kept beside, for the rest of it is in the new results.
    (path,) = tmp_path.glob("*.json")
    document = read(path)
    assert document["command"].endswith(f" --only-{option}")
    assert document["kept"]["command"] == "tensile-db bench plan-time --networks gcn --policies auto"
    assert (seconds_of(document, newer), seconds_of(document, older)) == ({2.0}, {1.0})


@pytest.mark.slow
@pytest.mark.usefixtures("little_effort")
@pytest.mark.parametrize("share", one_in(2, [0.5, 1.0]))
def test_a_newcomer_is_measured_as_a_worker_plans_it(share):
    graph = captured_step("test_resnet", batch=32, side=96)
    made = measure_arrival([graph] * 2, DEVICE, share, 1)
    assert made["beside"] == (share < 1)
    assert made["mended"] <= 1.001 * made["slowdown"]
    assert made["mended"] <= 1.01 * made["careful"]
    assert made["seconds"] > 0
    assert made["foreseen_s"] > 0


@pytest.mark.slow
def test_processes_that_plan_have_no_use_for_pytorch(monkeypatch):
    called = set()
    monkeypatch.setattr(
        plan_time, "_apart", lambda measured, *_: called.add(measured.__module__) or {"seconds": 1.0}
    )
    settings = {"networks": ["gcn"], "policies": ["auto"], "batch": 2, "optimizer": "adam"}
    plan_time.run(Captures(), DEVICE, curve_ops=(700,), **settings)
    assert called == {"tensile_db.bench.planned_alone", "tensile_db.bench.planned_arrival"}
    code = f"import sys, {', '.join(called)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
