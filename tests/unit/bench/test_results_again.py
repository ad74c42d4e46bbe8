"""Simulated results are deterministic: of each committed file a part, run again, gives its figures."""

from functools import partial
from pathlib import Path

import pytest

from tensile_db.bench import ablations, batch, bounds, mixed, phases, scale, single
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import point, subject
from tensile_db.bench.queueing import runs, side_by_side
from tensile_db.bench.reports.results import read
from tensile_db.scheduler.machines import machine
from tests.examples import one_in

#: Left out of `make check`.
pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[3] / "bench/results"
A6000 = machine("sim:a6000")
ADAM = {"optimizer": "adam"}
RESNET = {"networks": ["resnet50"], "batch": 16} | ADAM
PEERS = (
    "vdnn_all",
    "checkpoint",
    "checkpoint_articulation",
    "superneurons",
    "superneurons_memory",
    "capuchin",
)
#: Seconds are measured.
MEASURED = {"planning_s", "solving_s"}


def rows_of(name):
    return read(RESULTS / f"{name}.json")["rows"]


def simulated(value):
    """Return what is not measured."""
    if isinstance(value, dict):
        return {key: simulated(each) for key, each in value.items() if key not in MEASURED}
    return [simulated(each) for each in value] if isinstance(value, list) else value


def matching(rows, **wanted):
    return [simulated(row) for row in rows if all(row[key] == value for key, value in wanted.items())]


@pytest.mark.parametrize(
    "policy",
    ["vdnn_all", "checkpoint", "checkpoint_articulation", "superneurons", "superneurons_memory", "capuchin"],
)
def test_a_peers_points_of_one_job(captures, policy):
    (committed,) = (
        row for row in read(RESULTS / "single_a6000.json")["networks"] if row["network"] == "resnet50"
    )
    job = subject(captures.graph(workload("resnet50"), 16, "adam"), A6000)
    for entry in committed["policies"][policy]["points"][:3]:
        assert simulated(point(job, policy, entry["budget_nbytes"])) == simulated(entry)


@pytest.mark.thorough
def test_splits_of_a_slow_plan_whose_ops_need_less_than_half(captures):
    """BERT within 18 % of eager's peak: no op needs 45 % of that."""
    (committed,) = matching(read(RESULTS / "single_a6000_beyond.json")["networks"], network="bert")
    (entry,) = matching(committed["policies"]["auto"]["points"], share=0.18)
    job = subject(captures.graph(workload("bert"), 16, "adam"), A6000)
    assert simulated(point(job, "auto", entry["budget_nbytes"])) == simulated(entry)


@pytest.mark.parametrize("policy", ["vdnn_conv", "superneurons", "tensile"])
def test_equal_jobs_at_once(captures, policy):
    made = scale.run(captures, A6000, policies=[policy], counts=(2,), **RESNET)["rows"]
    assert simulated(made) == matching(rows_of("scale_a6000"), network="resnet50", jobs=2, policy=policy)


@pytest.mark.parametrize("share", one_in(2, [0.35, 0.45]))
def test_equal_jobs_in_lanes(captures, share):
    """One lane, so that nothing is assumed of how far jobs in two lanes fill each other's stalls."""
    p100 = machine("sim:p100")
    job = subject(captures.graph(workload("vgg16"), 16, "adam"), p100)
    made = runs._together([job] * 2, share, "auto", p100)
    (committed,) = matching(
        read(RESULTS / "sharing_p100.json")["together"],
        network="vgg16",
        jobs=2,
        share=share,
        sharing="auto",
    )
    assert committed == {"network": "vgg16", "jobs": 2, "share": share, "sharing": "auto"} | made
    assert made["lanes"] == 1


@pytest.mark.parametrize("policy", one_in(3, ["checkpoint", "tensile", "capuchin"]))
def test_equal_jobs_without_lanes(captures, policy):
    p100 = machine("sim:p100")
    job = subject(captures.graph(workload("resnet50"), 16, "adam"), p100)
    made = side_by_side.run({"resnet50": job}, p100, runs._ITERATIONS, policies=[policy])
    committed = read(RESULTS / "sharing_p100.json")["without_lanes"]
    assert made == matching(committed, network="resnet50", policy=policy)


@pytest.mark.thorough
def test_different_jobs_launched_one_by_one(captures):
    networks = ["vgg16", "inception_v3", "inception_v4", "resnet50", "densenet121"]
    run = partial(mixed.run, captures, A6000, networks=networks, batch=16, **ADAM)
    (made,) = run(policies=["vdnn_conv"])["rows"]
    (committed,) = matching(rows_of("mixed_a6000"), policy="vdnn_conv")
    assert simulated(made) == committed


@pytest.mark.parametrize("policy", one_in(3, ["tensile", "checkpoint", "vdnn_conv"]))
def test_a_batch_of_eight(captures, policy):
    made = batch.run(
        captures, A6000, networks=["resnet50"], policies=[policy], batches=[8], within_memory=False, **ADAM
    )["rows"]
    assert simulated(made) == matching(rows_of("batch_a6000"), network="resnet50", batch=8, policy=policy)


@pytest.mark.parametrize("policy", ["vanilla", "superneurons", "capuchin"])
def test_speed_within_a_titan_rtx(captures, policy):
    made = batch.run(
        captures,
        machine("sim:titanrtx"),
        networks=["vgg16"],
        policies=[policy],
        batches=[128],
        optimizer="momentum",
        within_memory=True,
    )["rows"]
    assert simulated(made) == matching(rows_of("batch_titanrtx"), network="vgg16", batch=128, policy=policy)


@pytest.mark.parametrize(
    ("name", "only_first"),
    [("phases", False), pytest.param("first_iteration", True, marks=pytest.mark.thorough)],
)
def test_phases(captures, name, only_first):
    policies = ["tensile", "auto"]
    made = phases.run(captures, A6000, policies=policies, seed=1, only_first=only_first, **RESNET)["rows"]
    (committed,) = matching(rows_of(f"{name}_a6000"), network="resnet50")
    (row,) = simulated(made)
    assert row["policies"] == {policy: committed["policies"][policy] for policy in policies}
    assert row.get("passive_eor") == committed.get("passive_eor")


def test_lower_bounds(captures):
    (made,) = bounds.run(captures, A6000, networks=["vgg16"], batch=16, shares=(0.5, 0.3), **ADAM)["rows"]
    (committed,) = matching(rows_of("bounds_a6000"), network="vgg16")
    points = {entry["budget_nbytes"]: entry for entry in committed.pop("bound")}
    found = simulated(made)
    assert [points[entry["budget_nbytes"]] for entry in found["bound"]] == found.pop("bound")
    assert found == committed


def test_bounds_of_single_are_those_of_bounds():
    beside = {
        row["network"]: simulated(row["bound"]) for row in read(RESULTS / "single_a6000.json")["networks"]
    }
    assert beside == {row["network"]: simulated(row["bound"]) for row in rows_of("bounds_a6000")}
    assert set(single.SHARES) == set(read(RESULTS / "bounds_a6000.json")["shares"])


def test_capuchins_mechanisms(captures, monkeypatch):
    figures = [figure for figure in ablations._FIGURES if figure[0] == "resnet50"]
    monkeypatch.setattr(ablations, "_FIGURES", tuple(figures))
    made = ablations.run(captures, machine("sim:p100"), optimizer="momentum")["rows"]
    assert simulated(made) == matching(rows_of("ablations_p100"), network="resnet50")
