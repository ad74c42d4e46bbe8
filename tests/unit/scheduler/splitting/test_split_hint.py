"""What is said to help a job that splitting brings within no budget: a smaller batch only where it does."""

import pytest

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step
from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.request import JobRequest

pytestmark = pytest.mark.slow

DEVICE = machine("sim:a6000")
#: Bytes of a weight of so many inputs and outputs.
WIDTH = 1024
WEIGHT_NBYTES = 4 * WIDTH * WIDTH


def refusal_of(policy, rows, memory_limit_nbytes):
    model = build(
        "mlp", num_outputs=2, input_shape=(WIDTH,), seed=0, options={"hidden_units": [WIDTH, WIDTH]}
    )
    optimizer = configure("sgd")
    step = capture_train_step(model, batch_shape=(rows, WIDTH), target="classes", optimizer=optimizer)
    job = JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=predict_latencies_ns(step.graph, DEVICE),
        policy=policy,
        memory_limit_nbytes=memory_limit_nbytes,
    )
    with pytest.raises(DoesNotFit) as refusal:
        plan_jobs([job], DEVICE)
    return refusal.value


@pytest.mark.parametrize("policy", ["auto", "auto_split", "auto_exact", "tsplit"])
@pytest.mark.parametrize("rows", [1, 64])
def test_where_weights_alone_are_too_large_no_smaller_batch_is_proposed(policy, rows):
    refusal = refusal_of(policy, rows, WEIGHT_NBYTES)
    assert refusal.needed_nbytes > WEIGHT_NBYTES
    assert refusal.hint.startswith("Only more memory helps: weights that an op needs at once")


def test_where_the_batch_is_too_large_a_smaller_one_is_proposed():
    refusal = refusal_of("auto_exact", 8192, 3 * WEIGHT_NBYTES)
    assert refusal.hint.startswith("Ops that need the whole batch or all channels cannot be split: use a")
