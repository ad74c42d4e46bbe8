"""A network's training step, planned, and really run on the `cpu` device over a paced link.

The link is paced so that compute and transfer stand to each other as on the A6000 of TENSILE section V-A: its
24 GB/s each way, slowed down by as much as this machine's ops are slower than a roofline of the A6000.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.packed_step import planned_step
from tensile_db.capture.state import initial_state
from tensile_db.capture.step import CapturedStep
from tensile_db.capture.train_step import capture_train_step
from tensile_db.graph import StepGraph
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import Executor, IterationResult
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.messages import JobId

A6000 = machine("sim:a6000")
#: Of the weights, the batch, and what an op draws.
SEED = 1
CLASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A training step with Adam, the state it starts from, and the batch that every iteration gets."""

    step: CapturedStep
    state: dict[str, torch.Tensor]
    batch: tuple[torch.Tensor, ...]

    def plan(
        self, latencies_ns: Sequence[int], device: DeviceSpec, policy: str, budget_nbytes: int
    ) -> JobPlan:
        """Plan the step alone on the device, with the budget as its memory; latencies_ns: by op id."""
        request = JobRequest(job_id=1, graph=self.step.graph, latencies_ns=latencies_ns, policy=policy)
        (plan,) = plan_jobs([request], replace(device, memory_nbytes=budget_nbytes))
        return plan

    def run(
        self,
        plan: JobPlan,
        *,
        link_bytes_per_s: int,
        iterations: int,
        threads: int | None = None,
        sample_latencies: bool,
    ) -> list[IterationResult]:
        """Run the plan's iterations on a new device that has no more memory than the plan needs."""
        device = CpuDevice(
            memory_nbytes=plan.budget_nbytes,
            threads=threads,
            d2h_bytes_per_s=link_bytes_per_s,
            h2d_bytes_per_s=link_bytes_per_s,
        )
        try:
            with JobMemory(
                device, job=JobId(1), budget_nbytes=plan.budget_nbytes, state=self.state, seed=SEED
            ) as memory:
                step = planned_step(self.step, plan.plan.rewriting, device.torch_device)
                executor = Executor(step, memory)
                executor.adopt(plan.program)
                return [
                    executor.run_iteration(self.batch, iteration, sample_latencies=sample_latencies)
                    for iteration in range(1, iterations + 1)
                ]
        finally:
            device.close()


def open_network(name: str, *, batch_size: int, image_size: int) -> Network:
    """Build the network for square colour pictures, capture its step and draw a batch."""
    optimizer = configure("adam")
    shape = (batch_size, 3, image_size, image_size)
    model = build(name, num_outputs=CLASSES, input_shape=shape[1:], seed=SEED)
    step = capture_train_step(model, batch_shape=shape, target="classes", optimizer=optimizer)
    generator = torch.Generator().manual_seed(SEED)
    batch = (
        torch.randn(shape, generator=generator),
        torch.randint(CLASSES, (batch_size,), generator=generator),
    )
    return Network(step=step, state=initial_state(model, optimizer), batch=batch)


def slower_than_a6000(graph: StepGraph, latencies_ns: Sequence[int]) -> float:
    """Return how many times longer the ops take than a roofline of the A6000 says; latencies_ns: by op id."""
    return sum(latencies_ns) / sum(predict_latencies_ns(graph, A6000))
