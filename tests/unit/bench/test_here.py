"""Benchmarks on this machine's own devices: plans really run, figures are measured."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from tensile_db.bench import here, phases, points
from tensile_db.bench.machines import on, spec_of, torch_device
from tensile_db.bench.networks import workloads
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import plan_one, subject, sweep
from tensile_db.cli import app
from tensile_db.errors import DoesNotFit, InvalidRequest, UnknownName
from tensile_db.scheduler.machines import machine
from tensile_db.worker.devices.cpu import CpuDevice
from tests.examples import one_in

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

RUNNER = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
SMALL = ("--networks", "gcn", "--batch-size", "1")


@pytest.fixture(autouse=True)
def few_iterations(monkeypatch):
    monkeypatch.setattr(here, "_MEASURED", 1)
    monkeypatch.setattr(here, "_ROUNDS", 1)


@pytest.fixture(autouse=True)
def small_gcn(monkeypatch):
    """A tenth of the nodes, which are really computed with."""
    nodes = workloads._NODES_PER_ROW // 10
    monkeypatch.setattr(workloads, "_NODES_PER_ROW", nodes)
    monkeypatch.setitem(workloads.WORKLOADS, "gcn", replace(workload("gcn"), rows=nodes))


@pytest.fixture
def make_cpu():
    opened = []

    def make(memory_nbytes):
        device = CpuDevice(memory_nbytes=memory_nbytes)
        opened.append(device)
        return device

    yield make
    for device in opened:
        device.close()


def test_single_on_the_processor_runs_every_policys_best_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(points, "_NEIGHBOURS", (-0.02, 0.02))
    chosen = ("--policies", "vanilla,vdnn_all,checkpoint,auto", "--budgets", "60", "--no-bound")
    called = ["bench", "single", "--device", "cpu", *SMALL, *chosen, "--out", str(tmp_path)]
    result = RUNNER.invoke(app, called)
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "single_cpu.json").read_text())
    assert document["device"]["name"] == "cpu"
    (network,) = document["networks"]
    ran = network["measured"]
    # vDNN refuses a network without convolutions, so that there is nothing to run.
    assert list(ran) == ["vanilla", "checkpoint", "auto"]
    assert ran["vanilla"]["peak_nbytes"] == network["eager_peak_nbytes"]
    for policy in ("checkpoint", "auto"):
        assert ran[policy]["peak_nbytes"] <= ran[policy]["guaranteed_peak_nbytes"]
        assert ran[policy]["msr"] > 0
        assert ran[policy]["time_ns"] > 0
    assert ran["checkpoint"]["recomputed_ops"] > 0
    assert "Really run" in result.output


def test_measured_latencies_are_what_plans_are_made_from(make_cpu):
    device = make_cpu(2**31)
    trained = here.training(device, workload("gcn"), 1, "sgd")
    assert len(trained.job.latencies_ns) == len(trained.step.graph.ops)
    assert trained.job.eager_ns == sum(trained.job.latencies_ns)
    results = trained.run(plan_one(trained.job, "auto", trained.job.least_nbytes))
    assert max(result.peak_nbytes for result in results) <= trained.job.least_nbytes


def test_a_policys_plan_that_needs_more_than_the_device_has_does_not_run(make_cpu):
    gcn = workload("gcn")
    eager_nbytes = subject(Captures().graph(gcn, 1, "sgd"), machine("sim:a6000")).eager_peak_nbytes
    trained = here.training(make_cpu(eager_nbytes), gcn, 1, "sgd")
    # SuperNeurons makes a GCN hold more than eager PyTorch does.
    swept = {"superneurons": sweep(trained.job, "superneurons", ())}
    assert swept["superneurons"][0]["msr"] < 0
    assert "but the budget is" in here.run_best(trained, swept)["superneurons"]["refused"]


def test_what_the_device_cannot_hold_at_all_is_refused(make_cpu):
    with pytest.raises(DoesNotFit):
        here.training(make_cpu(2**20), workload("gcn"), 1, "sgd")


def test_phases_on_the_processor_are_those_of_its_own_latencies(make_cpu):
    device = make_cpu(2**31)
    document = phases.run(
        Captures(),
        device.spec,
        networks=["gcn"],
        policies=["auto"],
        batch=1,
        optimizer="sgd",
        seed=1,
        here=device,
    )
    made = document["rows"][0]["policies"]["auto"]
    # Half of eager's peak is less than the largest op, which is split. The two plans are of two sets of
    # latencies, predicted and measured, and may differ in what they save beyond that half.
    assert made["cold start"]["msr"] >= 0.5
    assert made["updated"]["msr"] >= 0.5


@pytest.mark.parametrize("bench", one_in(2, ["bounds", "batch", "scale", "mixed", "first-iteration"]))
def test_every_other_bench_speaks_of_the_processor_too(tmp_path, bench):
    fewer = {
        "scale": ("--batch-size", "1", "--jobs", "2", "--policies", "vanilla,auto"),
        "batch": ("--batch-sizes", "1", "--policies", "vanilla,auto"),
        "mixed": ("--batch-size", "1", "--policies", "vanilla", "--seeds", "1"),
        "bounds": ("--batch-size", "1"),
        "first-iteration": ("--batch-size", "1", "--policies", "auto"),
    }
    called = ["bench", bench, "--device", "cpu", "--networks", "gcn", *fewer[bench], "--out", str(tmp_path)]
    result = RUNNER.invoke(app, called)
    assert result.exit_code == 0, result.output
    assert (tmp_path / f"{bench.replace('-', '_')}_cpu.json").exists()


def test_a_device_is_what_its_name_says():
    assert spec_of("sim:p100").name == "sim:p100"
    with on("sim:p100") as (spec, device):
        assert (spec.name, device) == ("sim:p100", None)
    assert torch_device("sim:p100") == torch_device("cpu") == torch.device("cpu")
    assert torch_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(UnknownName):
        spec_of("tpu")
    with pytest.raises(InvalidRequest):
        torch_device("cuda:one")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_captures_of_another_kind_of_device_are_kept_apart(tmp_path):
    graphs = [
        Captures(folder=tmp_path, device=torch_device(name)).graph(workload("gcn"), 1, "sgd")
        for name in ("cpu", "cuda:0")
    ]
    assert len(list(tmp_path.iterdir())) == 2
    assert all(graph.ops for graph in graphs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_with_a_hint():
    result = RUNNER.invoke(app, ["bench", "single", "--device", "cuda:0"])
    assert result.exit_code == 1
    assert "--device cpu" in result.stderr


def test_a_bench_of_the_papers_machines_alone_says_so():
    result = RUNNER.invoke(app, ["bench", "ablations", "--device", "cpu"])
    assert result.exit_code == 1
    assert "does not run on cpu" in result.stderr
