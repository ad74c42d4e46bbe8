"""Measures the ops of a probe's training step by running it: the executor's own way, kernels and memory.

So a measurement is what the executor will measure of jobs: in the order of a training, with caches as the op
before left them, and of kernels alone, as of jobs whose iterations are replayed.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import torch

from tensile_db.capture.networks.probes import Probe
from tensile_db.capture.optimizers import configure
from tensile_db.capture.state import initial_state
from tensile_db.capture.step import CapturedStep
from tensile_db.latency.features import OpFeatures
from tensile_db.latency.samples import LatencySample
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.request import JobRequest
from tensile_db.worker.devices.device import Device
from tensile_db.worker.execution.binding import Batch
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs import capturing
from tensile_db.worker.latencies.load import Load
from tensile_db.worker.latencies.op_features import step_features
from tensile_db.worker.messages import JobId

#: Iterations measured on the idle device, and beside load.
_IDLE_ITERATIONS, _LOADED_ITERATIONS = 5, 3
#: No job has it.
_JOB = JobId(0)


def measure_probe(
    device: Device, probe: Probe, *, number: int, load_levels: Sequence[int]
) -> list[LatencySample]:
    """Run a probe's step under each number of load threads; return a sample for each distinct op and number.

    number: decides the batch and the weights' generator.
    Raises DoesNotFit where the device's memory is too small, and what a kernel fails with.
    """
    optimizer = configure(probe.optimizer)
    with device.computing():
        # The number of kernel threads is set, upon which the captured layouts depend.
        pass
    step = capturing.train_step(
        probe.model,
        batch_shape=probe.batch_shape,
        task="classification",
        optimizer=optimizer,
        device=device.torch_device,
    )
    # Latencies do not matter to a plan that moves nothing.
    request = JobRequest(
        job_id=_JOB, graph=step.graph, latencies_ns=[1] * len(step.graph.ops), policy="vanilla"
    )
    (plan,) = plan_jobs([request], device.spec)
    batch = _random_batch(step, probe, number)
    state = initial_state(probe.model, optimizer)
    samples: list[LatencySample] = []
    with JobMemory(device, job=_JOB, budget_nbytes=plan.budget_nbytes, state=state, seed=number) as memory:
        # What is learned is of the hardware, whichever worker asks, one that replays or one that does not.
        executor = Executor(step, memory, replay=False, kernels_alone=True)
        try:
            executor.adopt(plan.program)
            features = step_features(step)
            for level in load_levels:
                with Load(device, level) as load:
                    latencies = _iterate(executor, batch, _LOADED_ITERATIONS if level else _IDLE_ITERATIONS)
                    samples += _summary(features, latencies, load.utilization)
        finally:
            executor.close()
    return samples


def _iterate(executor: Executor, batch: Batch, iterations: int) -> list[tuple[int, ...]]:
    """Return the ops' latencies of each iteration, ns by op id; the first one warms up and is left out."""
    executor.run_iteration(batch, 1)
    results = [
        executor.run_iteration(batch, iteration, sample_latencies=True)
        for iteration in range(2, 2 + iterations)
    ]
    return [result.latencies_ns for result in results if result.latencies_ns is not None]


def _summary(
    features: Sequence[OpFeatures], latencies: Sequence[Sequence[int]], utilization: float
) -> list[LatencySample]:
    measured: dict[OpFeatures, list[int]] = defaultdict(list)
    for op, of_op in enumerate(features):
        measured[of_op] += [iteration[op] for iteration in latencies]
    return [
        LatencySample(
            features=of_op, utilization=utilization, latency_ns=_typical_ns(ns, idle=utilization == 0.0)
        )
        for of_op, ns in measured.items()
    ]


def _typical_ns(latencies_ns: Sequence[int], *, idle: bool) -> int:
    """Return the median; of an idle device the median of the faster half.

    What others do on the machine is no part of what an idle device takes, and only ever makes it longer.
    """
    ordered = sorted(latencies_ns)
    if idle:
        ordered = ordered[: (len(ordered) + 1) // 2]
    return max(1, round(median(ordered)))


def _random_batch(step: CapturedStep, probe: Probe, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    features, target = step.inputs
    return [
        torch.randn(features.size, generator=generator),
        torch.randint(probe.num_classes, target.size, generator=generator),
    ]
