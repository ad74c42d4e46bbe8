"""Probes: what is drawn, and that running one gives a sample of each of its ops."""

from dataclasses import replace

import pytest

from tensile_db.capture.networks.probes import Limits, draw_probe
from tensile_db.errors import DoesNotFit
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.latencies import probing
from tensile_db.worker.latencies.load import Load, load_levels, utilization_beside
from tensile_db.worker.latencies.probing import measure_probe
from tests.late.runs import late_spec, open_late
from tests.late.step import late_step

SMALL = Limits(flops=2**22, tensor_nbytes=2**18)


@pytest.fixture
def device():
    device = CpuDevice(memory_nbytes=2**28, threads=1)
    yield device
    device.close()


def test_a_number_and_a_seed_decide_the_probe():
    first, again = (draw_probe(5, seed=1, limits=SMALL) for _ in range(2))
    assert (first.batch_shape, str(first.model)) == (again.batch_shape, str(again.model))
    weights = [[p.tolist() for p in probe.model.parameters()] for probe in (first, again)]
    assert weights[0] == weights[1]


def test_other_numbers_and_other_seeds_are_other_probes():
    drawn = [draw_probe(number, seed=seed, limits=SMALL) for number, seed in ((5, 1), (6, 1), (5, 2))]
    assert len({(probe.batch_shape, str(probe.model)) for probe in drawn}) == 3


def test_the_limit_of_a_tensor_holds_for_every_batch():
    sizes = [draw_probe(number, seed=1, limits=SMALL).batch_shape for number in range(60)]
    nbytes = [4 * shape[0] * shape[1] * (shape[2] * shape[3] if len(shape) == 4 else 1) for shape in sizes]
    assert max(nbytes) <= 2**18


@pytest.mark.slow
def test_a_probe_gives_a_sample_for_each_distinct_op_and_load(device):
    probe = draw_probe(0, seed=1, limits=SMALL)
    samples = measure_probe(device, probe, number=0, load_levels=(0, 1))
    idle = [sample for sample in samples if sample.utilization == 0.0]
    assert len(idle) * 2 == len(samples)
    assert len({sample.features for sample in idle}) == len(idle)
    assert min(sample.latency_ns for sample in samples) >= 1
    assert {"tensile.load_batch", "aten._log_softmax.default"} <= {sample.features.kind for sample in idle}
    assert device.memory.used_nbytes == 0


def test_a_probe_that_the_device_has_no_room_for_is_refused_and_leaves_nothing():
    tiny = CpuDevice(memory_nbytes=100, threads=1)
    with pytest.raises(DoesNotFit):
        measure_probe(tiny, draw_probe(0, seed=1, limits=SMALL), number=0, load_levels=(0,))
    tiny.memory.validate()
    tiny.close()


@pytest.mark.slow
@pytest.mark.parametrize("can_record", [True, False])
def test_samples_of_a_device_that_runs_behind_the_host_are_of_kernels_alone(monkeypatch, can_record):
    runtime, device = open_late("lazy", can_record=can_record)
    held_back = []

    class Watched(Executor):
        def __init__(self, step, memory, **options):
            super().__init__(late_step(step, runtime), memory, **options)

        def run_iteration(self, *args, **options):
            before = len(runtime.held_back_ns)
            result = super().run_iteration(*args, **options)
            held_back.append((result.latencies_ns is not None, len(runtime.held_back_ns) > before))
            return result

    monkeypatch.setattr(probing, "Executor", Watched)
    assert measure_probe(device, draw_probe(0, seed=1, limits=SMALL), number=0, load_levels=(0,))
    # The first one warms up.
    assert held_back == [(False, False), *5 * [(True, True)]]
    device.close()


def test_probes_are_measured_beside_load_only_where_predictions_beside_others_are_asked_for(
    device, monkeypatch
):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    spec = replace(device.spec, concurrency=8)
    assert [load_levels(number, spec) for number in range(4)] == [(0, 2), (0, 4), (0, 8), (0, 2)]
    # One job fills a GPU.
    assert [load_levels(number, late_spec()) for number in range(3)] == [(0,)] * 3


def test_load_ends_with_its_context(device):
    with Load(device, 2) as load:
        threads = list(load._threads)
        assert all(thread.is_alive() for thread in threads)
    assert not any(thread.is_alive() for thread in threads)


def test_utilization_is_what_other_jobs_ask_for(device, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    asked = [utilization_beside(device, jobs, threads=2) for jobs in (0, 1, 3, 9)]
    assert asked == [0.0, 0.25, 0.75, 1.0]
