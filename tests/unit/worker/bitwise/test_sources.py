"""What is made again from tensors that were held for it has eager's bits."""

from dataclasses import replace

import pytest

from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.choosing.sources import holds_sources
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tests.steps.bitwise_runs import (
    as_planned,
    capture_once,
    differing,
    losses_of,
    train_eagerly,
    train_here,
    unpackable,
    vanilla_peak_nbytes,
)
from tests.steps.small_networks import training_of

#: Over so slow a link that copies do not hide.
MACHINE = replace(machine("sim:a6000"), d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9)


@pytest.mark.slow
@pytest.mark.usefixtures("little_effort")
@pytest.mark.parametrize("share", [0.65, 0.4])
def test_a_dense_block_made_again_from_its_feature_maps(make_device, share):
    device, training = make_device(1 << 30), training_of("densenet", "adam", 8)
    step, state = capture_once(training)
    # Packed, it has other plans.
    step = unpackable(step)
    graph = step.graph
    job = JobRequest(job_id=1, graph=graph, latencies_ns=predict_latencies_ns(graph, MACHINE))
    memory_nbytes = int(share * vanilla_peak_nbytes(graph))
    (made,) = plan_jobs([job], replace(MACHINE, memory_nbytes=memory_nbytes))
    assert holds_sources(made.plan, planned_graph(graph, made.plan))
    got, results = train_here(device, as_planned(step, made, device), state, made.program, training.batches())
    want, losses = train_eagerly(training)
    assert differing(got, want) == []
    assert losses_of(results) == losses
    assert all(result.recomputed_ops > 0 for result in results)
    assert all(result.peak_nbytes <= made.program.guaranteed_peak_nbytes for result in results)
