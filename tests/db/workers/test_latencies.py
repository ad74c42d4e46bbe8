"""Latencies measured into the catalog, and predictions from what is there."""

import json
import threading

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step
from tensile_db.catalog import latency_models
from tensile_db.cli import app
from tensile_db.latency.model import LatencyModel, Layer, Rates
from tensile_db.latency.predictor import KindModel
from tensile_db.latency.training import Errors, Learned
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.latencies import known
from tensile_db.worker.latencies.calibrating import Calibration
from tensile_db.worker.latencies.hardware import hardware_name
from tensile_db.worker.latencies.op_features import step_features
from tensile_db.worker.service import Worker
from tests.graphs.hand_made_ops import lawful_samples
from tests.patience import wait_until

MEMORY_NBYTES = 2**26


@pytest.fixture
def device():
    device = CpuDevice(memory_nbytes=MEMORY_NBYTES, threads=1)
    yield device
    device.close()


@pytest.fixture
def hardware(device):
    return hardware_name(device.torch_device, threads=1)


@pytest.fixture
def calibrate(database, engine, device, hardware):
    """Measure so many probes; return what was learned, which is None where it was interrupted."""

    def calibrate(probes, *, seconds):
        measured = []

        def note(progress):
            measured.append(progress)
            calibration.interrupt()

        calibration = Calibration(
            engine,
            WorkerConfig(dsn=database.worker, memory_nbytes=MEMORY_NBYTES, threads=1),
            hardware=hardware,
            spec=device.spec,
            seconds=seconds,
            on_progress=note,
        )
        return calibration.run(should_stop=lambda: len(measured) >= probes)

    return calibrate


def constant_model(ops, ns):
    """A network that predicts the same for every op of the kind."""
    names = ops[0].names
    return LatencyModel(
        names=names,
        # Nothing but overhead: the roofline is the constant.
        rates=Rates(flops_per_s=10**18, memory_bytes_per_s=10**18, op_overhead_ns=ns),
        low=np.full(len(names) + 1, -100.0),
        high=np.full(len(names) + 1, 100.0),
        inputs=(0,),
        mean=np.zeros(1),
        deviation=np.ones(1),
        straight=np.zeros(1),
        layers=(Layer(weight=np.zeros((1, 1)), bias=np.zeros(1)),),
        least=0.0,
        most=40.0,
    )


def learned(*, network=None, scale=1.0):
    errors = Errors(r_squared=0.9, r_squared_log=0.95, median_relative_error=0.1, sample_count=20)
    return Learned(
        model=KindModel(network=network, roofline_scale=scale),
        errors=None if network is None else errors,
        sample_count=100,
    )


def predicted_ns(database, job):
    rows = database.execute(
        "SELECT o.target, l.predicted_ns FROM tensile.latency_logs l"
        " JOIN tensile.plans p ON p.job_id = l.job_id AND p.version = l.plan_version"
        " JOIN tensile.graph_ops o ON o.digest = p.captured_digest AND o.op_id = l.op_id"
        " WHERE l.job_id = %s ORDER BY l.op_id",
        job,
    )
    return [(row["target"], row["predicted_ns"]) for row in rows]


@pytest.mark.thorough
def test_an_interrupted_calibration_keeps_its_samples_and_goes_on_with_the_next_probe(
    database, calibrate, hardware
):
    assert calibrate(2, seconds=600) is None
    assert calibrate(1, seconds=600) is None
    rows = database.execute(
        "SELECT probe, count(*) AS n, min(latency_ns) AS least, array_agg(DISTINCT utilization) AS loads,"
        " array_agg(DISTINCT hardware) AS hardware FROM tensile.latency_samples GROUP BY 1 ORDER BY 1"
    )
    assert [row["probe"] for row in rows] == [0, 1, 2]
    assert min(row["least"] for row in rows) >= 1
    assert all(row["hardware"] == [hardware] and 0.0 in row["loads"] for row in rows)
    assert min(row["n"] for row in rows) > 50


def test_models_are_learned_from_all_samples_and_stored_with_their_errors(
    database, engine, calibrate, hardware
):
    with engine.begin() as conn:
        known.add_samples(conn, hardware, 0, lawful_samples(40))
        known.add_samples(conn, hardware, 1, lawful_samples(40, seed=1))
        known.add_samples(conn, "another machine", 0, lawful_samples(9))
    assert set(calibrate(99, seconds=0)) == {"aten.made_up.default"}
    (row,) = database.execute("SELECT * FROM tensile.latency_models")
    assert (row["hardware"], row["kind"], row["sample_count"]) == (hardware, "aten.made_up.default", 160)
    assert row["held_out_count"] == 30
    assert row["r_squared"] > 0.9
    assert row["median_relative_error"] < 0.1
    assert row["network"]["format"] == 1


def test_samples_come_back_as_they_went(engine):
    samples = lawful_samples(3)
    with engine.begin() as conn:
        known.add_samples(conn, "here", 4, samples)
        assert known.read_samples(conn, "here") == samples
        assert latency_models.next_probe(conn, "here") == 5
        assert latency_models.next_probe(conn, "elsewhere") == 0
        latency_models.forget(conn, "here")
        assert known.read_samples(conn, "here") == []


def test_models_of_an_unknown_format_are_left_out(engine, database):
    model = constant_model([lawful_samples(1)[0].features], 5)
    with engine.begin() as conn:
        known.replace_models(conn, "here", {"a": learned(network=model, scale=2.0)})
    database.execute("UPDATE tensile.latency_models SET network = network || '{\"format\": 99}'")
    with engine.begin() as conn:
        assert known.read_models(conn, "here", ["a"]) == {"a": KindModel(network=None, roofline_scale=2.0)}


def test_a_worker_plans_from_the_models_of_its_hardware(database, engine, start_worker, hardware):
    start_worker()
    before = database.submit("points", epochs=3)
    database.wait(before)
    step = capture_train_step(
        build("mlp", num_outputs=2, input_shape=(2,), seed=1),
        batch_shape=(8, 2),
        target="classes",
        optimizer=configure("momentum"),
    )
    relus = [op for op in step_features(step) if op.kind == "aten.relu.default"]
    with engine.begin() as conn:
        known.replace_models(conn, "another machine", {"aten.mm.default": learned(scale=1000.0)})
        known.replace_models(
            conn,
            hardware,
            {
                "aten.relu.default": learned(network=constant_model(relus, 12_345)),
                "aten.addmm.default": learned(scale=7.0),
                "aten.mm.default": learned(scale=7.0),
            },
        )
    after = database.submit("points", epochs=3)
    database.wait(after)
    plain, predicted = predicted_ns(database, before), predicted_ns(database, after)
    assert len(plain) == len(predicted) > 20
    for (target, roofline_ns), (_, ns) in zip(plain, predicted, strict=True):
        assert ns == (12_345 if target == "aten.relu.default" else 7 * roofline_ns)
    (plan,) = database.execute("SELECT * FROM tensile.plans WHERE job_id = %s AND version = 1", after)
    assert plan["vanilla_time_ns"] == sum(ns for _, ns in predicted)


def test_an_explanation_predicts_from_the_models_too(database, engine, start_worker, hardware):
    start_worker()
    with engine.begin() as conn:
        known.replace_models(conn, hardware, {"aten.mm.default": learned(scale=1_000_000.0)})
    row = database.wait(database.submit("points", kind="explain"))
    said = {line["property"]: line["value"] for line in row["result"]["rows"]}
    assert int(said["vanilla_time"]) > 10**11


def test_a_plan_without_a_worker_predicts_from_a_users_connection(database, engine):
    hardware = hardware_name(torch.device("cpu"), threads=3)
    with engine.begin() as conn:
        known.replace_models(conn, hardware, {"aten.mm.default": learned(scale=1_000_000.0)})
    anna = database.worker.replace("worker_login", "anna")
    arguments = ["plan", "mlp", "--device", "cpu", "--dsn", anna, "--json", "--threads"]
    seconds = {}
    for threads in ("2", "3"):
        result = CliRunner().invoke(app, [*arguments, threads])
        assert result.exit_code == 0, result.output
        seconds[threads] = json.loads(result.stdout)["predicted"]["vanilla_time_ns"] / 1e9
    assert seconds["2"] < 1.0
    assert seconds["3"] > 1.0


def test_a_worker_measures_while_it_is_idle_and_jobs_end_it_at_once(database, tmp_path):
    worker = Worker(
        WorkerConfig(
            dsn=database.worker,
            memory_nbytes=MEMORY_NBYTES,
            threads=1,
            cache_dir=tmp_path,
            poll_s=0.2,
            idle_s=0.2,
            calibration_s=600.0,
        )
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        measured = "SELECT 1 FROM tensile.latency_samples LIMIT 1"
        wait_until(lambda: database.execute(measured), lambda: "nothing was measured")
        job = database.submit("points", epochs=2)
        row = database.wait(job)
        assert row["state"] == "succeeded", row["error_message"]
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert database.execute("SELECT * FROM tensile.latency_models") == []


def test_users_read_what_is_known_and_only_workers_write_it(site):
    for table in ("latency_samples", "latency_models"):
        assert site.execute(f"SELECT * FROM tensile.{table}", role="alice") == []
        sqlstate, _, _ = site.refusal(f"DELETE FROM tensile.{table}", role="alice")
        assert sqlstate == "42501"
        sqlstate, _, _ = site.refusal(f"SELECT * FROM tensile.{table}", role="mallory")
        assert sqlstate == "42501"
    insert = (
        "INSERT INTO tensile.latency_models (hardware, kind, roofline_scale, sample_count)"
        " VALUES ('h', 'k', 1, 1)"
    )
    assert site.refusal(insert)[0] == "42501"
    site.execute(insert, role="puppet_login")
    assert site.value("SELECT kind FROM tensile.latency_models", role="bob") == "k"


def test_torchs_version_is_part_of_the_hardware(hardware):
    assert hardware.endswith(f"1 threads a job, torch {torch.__version__}")
