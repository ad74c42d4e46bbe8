"""How long planning takes: what is measured, and how it is told."""

import subprocess
import sys

import pytest

from tensile_db.bench import plan_time, planned_alone
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.planned_alone import Change, measure
from tensile_db.bench.planned_arrival import measure_arrival
from tensile_db.bench.reports.plan_time import markdown
from tensile_db.scheduler.machines import machine
from tests.captured_steps import captured_step
from tests.small_step import small_step

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
    figures = {"policy": "auto", "seconds": 0.1, "memory_nbytes": 2**30, "msr": 0.5, "eor": 1.25}
    row = {"network": "resnet50", "share": None} | figures
    arrived = {"newcomer": "vgg16", "running": 4, "share": 0.2, "seconds": 0.07, "beside": True}
    arrived |= {"slowdown": 1.1, "mended_s": 2.0, "mended": 0.95, "careful_s": 3.0, "careful": 0.96}
    arrived |= {"foreseen_s": 0.125, "splits_s": 1.5}
    again = row | {"change": "arrival", "seconds": 0.02, "slower": 1.1, "improved_s": 2.5, "improved": 1.01}
    at_once = row | {"at_once": True, "seconds": 0.05}
    document = {"rows": [at_once, row], "again": [again], "curve": [{"ops": 1000} | figures]}
    page = markdown(document | {"arrived": [arrived]})
    assert "| ResNet-50 | ample | auto | 0.100 | 1.000 | 0.500 | 1.250 |" in page
    assert "| ResNet-50 | ample | auto, at once | 0.050 | 1.000 | 0.500 | 1.250 |" in page
    assert (
        "| ResNet-50 | a fifth less memory | auto | 0.020 | 1.000 | 0.500 | 1.250 | 1.100 | 2.500 | 1.010 |"
        in page
    )
    assert (
        "| VGG-16 | one of each of 4 others | 20% of eager's peaks | 0.070 | yes | 1.100 | 2.000 | 0.950"
        " | 3.000 | 0.960 | 0.125 | 1.500 |" in page
    )
    assert "newcomer" not in markdown(document)


@pytest.mark.slow
@pytest.mark.usefixtures("little_effort")
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_newcomer_is_measured_as_a_worker_plans_it(share):
    graph = captured_step("test_resnet", batch=32, side=96)
    made = measure_arrival([graph] * 2, DEVICE, share, 1)
    assert made["beside"] == (share < 1)
    assert made["mended"] <= 1.001 * made["slowdown"]
    assert made["mended"] <= 1.01 * made["careful"]
    assert made["seconds"] > 0
    assert made["foreseen_s"] > 0


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
