"""Workloads on a device of this machine: their ops are measured there, and plans really run there.

MSR and EOR are then against the policy `vanilla` on the same device, run by the same executor: a peak is the
most that the job's account held.  `make bench-gpu` measures a GPU beside eager PyTorch itself.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import nn

from tensile_db.bench.networks.captures import capture_workload
from tensile_db.bench.networks.workloads import Workload
from tensile_db.bench.points import Subject, best, plan_one, rates, subject
from tensile_db.capture.optimizers import configure
from tensile_db.capture.packed_step import planned_step
from tensile_db.capture.state import initial_state
from tensile_db.capture.step import CapturedStep
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.program import Program
from tensile_db.scheduler.request import JobPlan
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.opening import open_device
from tensile_db.worker.execution.executor import Executor, IterationResult
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.messages import JobId

#: Of the weights, the batch, and what ops draw.
SEED = 1
#: Iterations of a turn that are measured, after one that warms up; and turns of each plan, so that what else
#: the machine does falls on all alike.
_MEASURED, _ROUNDS = 3, 2

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A workload that can be trained on an open device."""

    device: Device
    step: CapturedStep
    state: Mapping[str, torch.Tensor]
    batch: Batch
    #: With measured latencies and workspaces.
    job: Subject

    def run(self, plan: JobPlan) -> list[IterationResult]:
        """Run a plan's iterations, the first of which warms up and is left out.

        Raises DoesNotFit where the device has less memory than the plan needs.
        """
        step = planned_step(self.step, plan.plan.rewriting, self.device.torch_device)
        return _iterations(self.device, step, self.state, self.batch, plan.program)[1:]


@contextmanager
def opened(name: str) -> Iterator[Device]:
    """Open cpu or cuda:N with half of the free memory, or all of a GPU's, and close it.

    Raises UnknownName, InvalidRequest, NoSuchDevice.
    """
    device = open_device(WorkerConfig(dsn="", device=name))
    try:
        yield device
    finally:
        device.close()


def training(device: Device, workload: Workload, batch: int, optimizer: str) -> Training:
    """Build the workload, capture its step for the device and measure it there.

    Raises DoesNotFit where the device cannot hold it as eager PyTorch does.
    """
    model = build(workload, batch)
    config = configure(optimizer)
    step = capture_workload(workload, model, batch, config, device.torch_device)
    state, drawn = initial_state(model, config), draw_batch(workload, batch, model)
    step, latencies_ns = measured(device, step, state, drawn)
    job = replace(subject(step.graph, device.spec), latencies_ns=latencies_ns, eager_ns=sum(latencies_ns))
    return Training(device=device, step=step, state=state, batch=drawn, job=job)


def measured(
    device: Device, step: CapturedStep, state: Mapping[str, torch.Tensor], batch: Batch
) -> tuple[CapturedStep, tuple[int, ...]]:
    """Return the step with its ops' workspaces as they are seen to be, and each op's median latency in ns."""
    program = lower(step.graph, vanilla.plan_one(step.graph))
    watched = _iterations(device, step, state, batch, program, measure_workspaces=True)[0].workspaces_nbytes
    assert watched is not None
    results = _iterations(device, step, state, batch, program, sample_latencies=True)[1:]
    sampled = [result.latencies_ns for result in results if result.latencies_ns is not None]
    latencies_ns = tuple(max(1, int(median(times))) for times in zip(*sampled, strict=True))
    ops = (replace(op, workspace_nbytes=nbytes) for op, nbytes in zip(step.graph.ops, watched, strict=True))
    return replace(step, graph=replace(step.graph, ops=tuple(ops))), latencies_ns


def run_best(
    trained: Training, points: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Really run each policy's plan of the best predicted CBR, in turns; return what was measured, by policy.

    points: by policy, as points.sweep gives them; one that needs more than the device has does not run.
    Raises DoesNotFit where `vanilla` does.
    """
    plans = {"vanilla": plan_one(trained.job, "vanilla", None)}
    for policy, entries in points.items():
        chosen = best(entries)
        if chosen is not None and policy != "vanilla":
            plans[policy] = plan_one(trained.job, policy, chosen["budget_nbytes"])
    memory_nbytes = trained.device.spec.memory_nbytes
    refused = {
        policy: DoesNotFit(needed_nbytes=plan.budget_nbytes, budget_nbytes=memory_nbytes).message
        for policy, plan in plans.items()
        if plan.budget_nbytes > memory_nbytes and policy != "vanilla"
    }
    runs: dict[str, list[IterationResult]] = {policy: [] for policy in plans if policy not in refused}
    for _ in range(_ROUNDS):
        for policy, results in runs.items():
            results += trained.run(plans[policy])
    eager = _figures(runs["vanilla"])
    found: dict[str, dict[str, Any]] = {policy: {"refused": message} for policy, message in refused.items()}
    for policy, results in runs.items():
        ran, said = _figures(results), plans[policy].prediction
        made = rates(ran["peak_nbytes"], eager["peak_nbytes"], ran["time_ns"], eager["time_ns"])
        predicted = {
            "guaranteed_peak_nbytes": said.guaranteed_peak_nbytes,
            "predicted_eor": round(said.eor, 4),
        }
        found[policy] = ran | made | predicted
    return {policy: found[policy] for policy in plans}


def _figures(results: Sequence[IterationResult]) -> dict[str, int]:
    return {
        "peak_nbytes": max(result.peak_nbytes for result in results),
        "time_ns": int(median(result.elapsed_ns for result in results)),
        "stall_ns": int(median(result.stall_ns for result in results)),
        "swapped_out_nbytes": results[-1].swapped_out_nbytes,
        "recomputed_ops": results[-1].recomputed_ops,
    }


def build(workload: Workload, batch: int) -> nn.Module:
    """Make the network on the host, with the same weights each time."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        return workload.build(batch, 1).train()


def draw_batch(workload: Workload, batch: int, model: nn.Module) -> Batch:
    """Return a batch of the workload on the host."""
    shape = (batch * workload.rows, *workload.row_shape)
    generator = torch.Generator().manual_seed(SEED)
    if workload.features_dtype.is_floating_point:
        features = torch.randn(shape, generator=generator)
    else:
        # No more than the smallest vocabulary of the workloads' embeddings; two where nothing is looked up.
        embeddings = (each for each in model.modules() if isinstance(each, nn.Embedding))
        tokens = min((each.num_embeddings for each in embeddings), default=2)
        features = torch.randint(tokens, shape, generator=generator)
    # Two classes: every network has as many.
    target = torch.randint(2, (shape[0] * workload.targets_per_row,), generator=generator)
    return features, target


def _iterations(
    device: Device,
    step: CapturedStep,
    state: Mapping[str, torch.Tensor],
    batch: Batch,
    program: Program,
    *,
    measure_workspaces: bool = False,
    sample_latencies: bool = False,
) -> list[IterationResult]:
    """Run iterations within the program's guaranteed peak: only the first is watched for its workspaces."""
    needed_nbytes, memory_nbytes = program.guaranteed_peak_nbytes, device.spec.memory_nbytes
    if needed_nbytes > memory_nbytes:
        raise DoesNotFit(needed_nbytes=needed_nbytes, budget_nbytes=memory_nbytes)
    # While workspaces are looked for, nothing is known of them yet.
    budget_nbytes = memory_nbytes if measure_workspaces else needed_nbytes
    count = 1 if measure_workspaces else 1 + _MEASURED
    gc.collect()
    with (
        JobMemory(device, job=JobId(1), budget_nbytes=budget_nbytes, state=state, seed=SEED) as memory,
        closing(Executor(step, memory)) as executor,
    ):
        executor.adopt(program)
        return [
            executor.run_iteration(
                batch,
                number,
                measure_workspaces=measure_workspaces,
                sample_latencies=sample_latencies,
            )
            for number in range(1, 1 + count)
        ]
