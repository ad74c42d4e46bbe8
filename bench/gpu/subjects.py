"""A network, its training step captured for the device, and runs of it by plans and by plain PyTorch."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.gpu.captured import captured
from bench.gpu.machine import Machine
from tensile_db.bench.here import SEED, Batch, draw_batch
from tensile_db.bench.here import build as built
from tensile_db.bench.networks.captures import capture_workload, code_digest
from tensile_db.bench.networks.workloads import Workload
from tensile_db.capture.networks.memory_format import laid_out
from tensile_db.capture.optimizers import configure
from tensile_db.capture.packed_step import planned_step
from tensile_db.capture.precision import Precision, autocast
from tensile_db.capture.state import initial_state, model_state
from tensile_db.capture.step import CapturedStep
from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies.vanilla import plan_one
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.sharing.recordable import plan_recordable
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.worker.devices.device import Device
from tensile_db.worker.execution.executor import Executor, IterationResult
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.execution.replaying import Tell
from tensile_db.worker.messages import JobId
from tensile_db.worker.workspaces.charging import with_workspaces

LEARNING_RATE = 0.001
#: Iterations before a replayed one is measured: what is taken down is so at the third.
_REPLAY_WARM_UP = 5
#: Of all runs that name no other.
OPTIMIZER = "momentum"
_EAGER_OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass
class Told:
    """What an executor said of replay last."""

    said: dict[str, Any] = field(default_factory=dict)

    def __call__(self, what: str, detail: Mapping[str, Any]) -> None:
        """Keep it."""
        self.said = {"said": what, **detail}


@dataclass(kw_only=True)
class Subject:
    """A network at one batch size."""

    name: str
    size: int
    #: Makes the network on the host, with the same weights whenever it is called.
    build: Callable[[], nn.Module]
    batch: Batch
    #: None where the network is only trained by PyTorch itself.
    step: CapturedStep | Any
    state: dict[str, torch.Tensor]
    capturing_s: float
    #: By op id; 1 each until they are predicted or measured.
    latencies_ns: tuple[int, ...] = ()
    #: One of _EAGER_OPTIMIZERS.
    optimizer: str = OPTIMIZER

    def plan(self, spec: DeviceSpec, policy: str, budget_nbytes: int | None) -> JobPlan:
        """Plan the step alone; budget_nbytes: None for as much as it likes.  Raises DoesNotFit."""
        request = self._request(policy)
        memory_nbytes = budget_nbytes or 2**50
        (made,) = plan_jobs([request], replace(spec, memory_nbytes=memory_nbytes))
        return made

    def in_parts(self, plan: JobPlan, where: torch.device) -> "Subject":
        """Return it with the step as the plan packs and splits it; where: the device that runs it."""
        return replace(self, step=planned_step(self.step, plan.plan.rewriting, where))

    def measure(self, device: Device) -> dict[str, Any]:
        """Replace predictions by what is measured: latencies, and workspaces, which the graph then has."""
        self.latencies_ns = predict_latencies_ns(self.step.graph, device.spec)
        program = lower(self.step.graph, plan_one(self.step.graph))
        nbytes = max(program.guaranteed_peak_nbytes, device.spec.memory_nbytes)
        with self._executor(device, nbytes) as executor:
            executor.adopt(program)
            executor.run_iteration(self.batch, 1)
            watched = executor.run_iteration(self.batch, 2, measure_workspaces=True).workspaces_nbytes
            runs = [executor.run_iteration(self.batch, 3 + i, sample_latencies=True) for i in range(3)]
        assert watched is not None
        sampled = [run.latencies_ns for run in runs if run.latencies_ns is not None]
        self.latencies_ns = tuple(max(1, int(median(times))) for times in zip(*sampled, strict=True))
        self.step = with_workspaces(self.step, watched)
        return {
            "ops": len(watched),
            "ops_ns": sum(self.latencies_ns),
            "largest_workspace_nbytes": max(watched),
            "ops_with_workspace": sum(nbytes > 0 for nbytes in watched),
        }

    def run(
        self,
        machine: Machine,
        device: Device,
        plan: JobPlan,
        *,
        iterations: int,
        warm_up: int = 2,
        replay_within_nbytes: int | None = None,
    ) -> dict[str, Any]:
        """Run a plan's iterations, op by op within its guaranteed peak; return times and peaks.

        replay_within_nbytes: what the job may hold where its iterations are replayed, if they can be.
        """
        machine.clean()
        before_nbytes, reserved_before_nbytes = machine.allocated_nbytes(), machine.reserved_nbytes()
        told = Told()
        replays = replay_within_nbytes is not None
        budget_nbytes = replay_within_nbytes or plan.budget_nbytes
        with self._executor(device, budget_nbytes, replay=replays, tell=told) as executor:
            executor.adopt(plan.program)
            results: list[IterationResult] = []
            times_ns: list[int] = []
            for number in range(1, 1 + warm_up + iterations):
                if number == 1 + warm_up:
                    machine.begin_peak()
                begin_ns = time.perf_counter_ns()
                results.append(executor.run_iteration(self.batch, number))
                times_ns.append(time.perf_counter_ns() - begin_ns)
            peaks = machine.peaks()
        kept = results[warm_up:]
        return {
            "time_ns": int(median(times_ns[warm_up:])),
            "kernels_ns": int(median(result.elapsed_ns for result in kept)),
            "stall_ns": int(median(result.stall_ns for result in kept)),
            "account_peak_nbytes": max(result.peak_nbytes for result in kept),
            "guaranteed_peak_nbytes": plan.budget_nbytes,
            "budget_nbytes": budget_nbytes,
            "allocated_peak_nbytes": peaks["max_allocated_nbytes"] - before_nbytes,
            "reserved_peak_nbytes": peaks["max_reserved_nbytes"] - reserved_before_nbytes,
            "replayed": sum(result.replayed for result in kept),
            "of": len(kept),
            **told.said,
            "swapped_out_nbytes": kept[-1].swapped_out_nbytes,
            "swapped_in_nbytes": kept[-1].swapped_in_nbytes,
            "recomputed_ops": kept[-1].recomputed_ops,
            "predicted_ns": plan.prediction.time_ns,
            "bound_ns": plan.prediction.lower_bound_time_ns,
            "loss": results[-1].outputs["loss"].item(),
        }

    def run_replayed(
        self, machine: Machine, device: Device, limit_nbytes: int | None, *, iterations: int
    ) -> dict[str, Any]:
        """Plan the step within a limit and replay it; return why not where nothing fits."""
        try:
            made = self._plan_replayed(device.spec, limit_nbytes)
        except DoesNotFit as error:
            return {"refused": error.message, "needed_nbytes": error.needed_nbytes}
        plan = made.job_plan
        return self.in_parts(plan, machine.torch_device).run(
            machine,
            device,
            plan,
            iterations=iterations,
            warm_up=_REPLAY_WARM_UP,
            replay_within_nbytes=made.share.budget_nbytes,
        )

    def run_planned(
        self, machine: Machine, device: Device, policy: str, budget_nbytes: int | None, *, iterations: int
    ) -> dict[str, Any]:
        """Plan the step for a budget and run it op by op; return why not where nothing fits."""
        try:
            plan = self.plan(device.spec, policy, budget_nbytes)
        except DoesNotFit as error:
            return {"refused": error.message, "needed_nbytes": error.needed_nbytes}
        subject = self.in_parts(plan, machine.torch_device)
        return subject.run(machine, device, plan, iterations=iterations)

    def train(self, device: Device, plan: JobPlan, iterations: int) -> dict[str, torch.Tensor]:
        """Return the state after so many iterations by a plan."""
        with self._executor(device, plan.budget_nbytes) as executor:
            executor.adopt(plan.program)
            for number in range(1, 1 + iterations):
                executor.run_iteration(self.batch, number)
            return executor.state()

    def _plan_replayed(self, spec: DeviceSpec, limit_nbytes: int | None) -> SharedPlan:
        """Plan the step alone as a worker that replays does, with room for that within the limit.

        limit_nbytes: None for all of the device.  Raises DoesNotFit.
        """
        request = replace(self._request("auto"), memory_limit_nbytes=limit_nbytes)
        (made,) = plan_recordable([request], spec)
        return made

    def _request(self, policy: str) -> JobRequest:
        """Return what is planned: quickly, as where jobs wait for each other's plans."""
        graph, latencies_ns = self.step.graph, self.latencies_ns
        return JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy, hurried=True)

    @contextmanager
    def _executor(
        self, device: Device, budget_nbytes: int, *, replay: bool = True, tell: Tell | None = None
    ) -> Iterator[Executor]:
        """Open the step on the device, within a budget, with the weights that it begins with."""
        with (
            JobMemory(
                device, job=JobId(1), budget_nbytes=budget_nbytes, state=self.state, seed=SEED
            ) as memory,
            closing(Executor(self.step, memory, replay=replay, tell=tell)) as executor,
        ):
            yield executor


def open_subject(
    workload: Workload,
    size: int,
    machine: Machine,
    precision: Precision = Precision.FLOAT32,
    memory_format: str | None = None,
    optimizer: str = OPTIMIZER,
) -> Subject:
    """Build a network, draw a batch and capture its training step for the machine's device.

    A step that the machine's folder has is not captured again.
    """
    made = network_builder(workload, size)()

    def build() -> nn.Module:
        # To draw weights anew takes seconds.
        return laid_out(copy.deepcopy(made), memory_format)

    model, config = build(), configure(optimizer, learning_rate=LEARNING_RATE)
    begin_s = time.monotonic()
    path = None
    if machine.captures is not None:
        kind = f"{memory_format or 'contiguous'}-{machine.torch_device.type}-{code_digest()}"
        path = machine.captures / f"{workload.name}-{size}-{optimizer}-{precision}-{kind}.pickle"
    step = captured(
        path,
        lambda: capture_workload(workload, model, size, config, machine.torch_device, precision),
    )
    return Subject(
        name=workload.name,
        size=size,
        build=build,
        batch=draw_batch(workload, size, model),
        step=step,
        state=initial_state(model, config, scales_loss=precision.scales_loss),
        capturing_s=round(time.monotonic() - begin_s, 2),
        latencies_ns=tuple([1] * len(step.graph.ops)),
        optimizer=optimizer,
    )


def only_eager(workload: Workload, size: int) -> Subject:
    """Return a network that PyTorch trains by itself, and draw a batch."""
    build = network_builder(workload, size)
    # Tokens are drawn for a network's vocabulary; images for any.
    model = nn.Module() if workload.features_dtype.is_floating_point else build()
    return Subject(
        name=workload.name,
        size=size,
        build=build,
        batch=draw_batch(workload, size, model),
        step=None,
        state={},
        capturing_s=0.0,
    )


def network_builder(workload: Workload, size: int) -> Callable[[], nn.Module]:
    """Return what makes the network on the host, with the same weights whenever it is called."""
    return partial(built, workload, size)


class Eager:
    """Plain PyTorch training the same network on the same batch."""

    def __init__(
        self,
        subject: Subject,
        machine: Machine,
        *,
        plain_optimizer: bool = False,
        precision: Precision = Precision.FLOAT32,
    ) -> None:
        """plain_optimizer: update one parameter at a time, as captured steps do, not many at once.

        precision: TF32 is the process' setting, and no matter of this.
        """
        self._precision = precision
        self._scaler = torch.amp.GradScaler(machine.torch_device.type, enabled=precision.scales_loss)
        self.model = subject.build().to(machine.torch_device)
        self.step_with = self.model
        self._where = machine.torch_device
        options: dict[str, Any] = {"foreach": False} if plain_optimizer else {}
        make = _EAGER_OPTIMIZERS[subject.optimizer]
        self.optimizer = make(self.model.parameters(), lr=LEARNING_RATE, **options)
        pin = machine.is_gpu
        self._batch = tuple(each.pin_memory() if pin else each for each in subject.batch)

    def iterate(self) -> torch.Tensor:
        """Train on the batch once; return the loss, on the device."""
        features, target = (each.to(self._where, non_blocking=True) for each in self._batch)
        self.optimizer.zero_grad()
        with autocast(self._precision, self._where):
            loss = functional.cross_entropy(self.step_with(features), target)
        # Scales nothing unless the precision asks for it.
        self._scaler.scale(loss).backward()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        return loss.detach()

    def state(self) -> dict[str, torch.Tensor]:
        """Return parameters, buffers and optimizer state by the names of captured steps."""
        found = model_state(self.model)
        for name, parameter in self.model.named_parameters():
            for slot, value in self.optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor) and slot != "step":
                    found[f"optimizer_state/{name}/{slot}"] = value
        return {name: value.detach().cpu() for name, value in found.items()}


def different(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that differ in any bit, or that only one of the two has."""
    return sorted(
        name
        for name in {*got, *want}
        if name not in got or name not in want or not _same_bits(got[name], want[name])
    )


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    return torch.equal(
        one.contiguous().reshape(-1).view(torch.uint8), two.contiguous().reshape(-1).view(torch.uint8)
    )
