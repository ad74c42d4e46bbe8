"""Iterations handed over op by op, and replayed: their bits, their time, the host's part in it, and memory.

All run the same plan on one device, which may take iterations down, with so much memory that these need not
be steered; eager PyTorch trains beside them.
"""

import time
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from bench.gpu.machine import Machine, spec_facts
from bench.gpu.networks import replay_cases
from bench.gpu.results import Results
from bench.gpu.subjects import SEED, Eager, Subject, Told, different, open_subject
from tensile_db.bench.networks.workloads import Workload
from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.request import JobPlan
from tensile_db.scheduler.sharing import gathered_updates
from tensile_db.scheduler.sharing.recorded_memory import recorded_memory
from tensile_db.worker.devices.device import Device
from tensile_db.worker.execution.executor import Executor, IterationResult
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.messages import JobId

#: Of vanilla's peak; None: as much as the plan likes.
SHARES: tuple[float | None, ...] = (None, 0.5)
APART = "replayed, updates apart"
#: The last one without memory pressure only.
WAYS = ("op by op", "replayed", APART)
_WARM_UP = 5


class _Trained(NamedTuple):
    """What came of a training, without the iterations that warm it up."""

    #: What was said of replay.
    said: dict[str, Any]
    #: After them, before the sampled one.
    state: dict[str, torch.Tensor]
    results: list[IterationResult]
    times_ns: list[int]
    #: Of one more iteration, whose latencies are sampled.
    sampled_ns: int


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Measure every network, with and without memory pressure."""
    runs = 5 if quick else 20
    device = machine.open(deterministic=True, replay=True)
    results.note(spec=spec_facts(device))
    for workload, size, optimizer in replay_cases(quick=quick):
        _case(workload, size, optimizer, machine, device, results, runs)
    device.close()


def _case(
    workload: Workload,
    size: int,
    optimizer: str,
    machine: Machine,
    device: Device,
    results: Results,
    runs: int,
) -> None:
    name = f"{workload.name} {size} {optimizer}"
    subject: Subject | None = results.attempt(
        f"{name}: capture", 12, lambda: open_subject(workload, size, machine, optimizer=optimizer)
    )
    if subject is None:
        return
    if results.attempt(f"{name}: measure", 4, lambda: subject.measure(device)) is None:
        # Where there was no time to measure, it has not predicted either, and all ops would take as long.
        subject.latencies_ns = predict_latencies_ns(subject.step.graph, device.spec)
    found = results.attempt(f"{name}: eager", 5, lambda: _eager(subject, machine, runs))
    if found is None:
        return
    eager, want = found
    case = {"network": workload.name, "batch": size, "optimizer": optimizer}
    results.add({**case, "way": "eager", **eager})
    machine.clean()
    for share in SHARES:
        plan: JobPlan | str | None = results.attempt(
            f"{name}: plan at {share}", 3, lambda s=share: _plan(subject, device, s)
        )
        if isinstance(plan, str):
            results.add({**case, "way": "auto", "share": share, "refused": plan})
        if not isinstance(plan, JobPlan):
            continue
        for way in WAYS if share is None else WAYS[:2]:
            entry = results.attempt(
                f"{name}: {way} at {share}",
                5,
                lambda w=way, p=plan: _planned(subject, machine, device, want, p, runs, way=w),
            )
            if entry is not None:
                results.add({**case, "way": way, "share": share, **entry})
            machine.clean()


def _eager(subject: Subject, machine: Machine, runs: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return times, and the state after as many iterations as a plan is run for."""
    training = Eager(subject, machine, plain_optimizer=True)
    with machine.seeded(SEED):
        times_ns = machine.times_ns(training.iterate, warm_up=_WARM_UP, runs=runs)
        # Copies: on the processor these are the tensors themselves.
        state = {name: value.clone() for name, value in training.state().items()}
        pipelined_ns = machine.pipelined_ns(training.iterate, runs=runs)
    return {"time_ns": int(median(times_ns)), "pipelined_ns": pipelined_ns}, state


def _plan(subject: Subject, device: Device, share: float | None) -> JobPlan | str:
    """Return the plan, or why there is none."""
    whole = subject.plan(device.spec, "vanilla", None)
    limit_nbytes = None if share is None else int(share * whole.budget_nbytes)
    try:
        return subject.plan(device.spec, "auto", limit_nbytes)
    except DoesNotFit as error:
        return error.message


def _planned(
    subject: Subject,
    machine: Machine,
    device: Device,
    want: dict[str, torch.Tensor],
    plan: JobPlan,
    runs: int,
    *,
    way: str,
) -> dict[str, Any]:
    subject = subject.in_parts(plan, machine.torch_device)
    with _apart() if way == APART else nullcontext():
        trained = _train(subject, device, plan, runs, replay=way != "op by op")
        recorded_nbytes = _recorded_nbytes(subject, plan)
    kept, names = trained.results, different(trained.state, want)
    return {
        "replayed": sum(result.replayed for result in kept),
        "of": len(kept),
        **trained.said,
        "equal": not names,
        "differing": len(names),
        "time_ns": int(median(trained.times_ns)),
        "kernels_ns": int(median(result.elapsed_ns for result in kept)),
        "sampled_ns": trained.sampled_ns,
        "predicted_ns": plan.prediction.time_ns,
        "recorded_nbytes": recorded_nbytes,
        "guaranteed_peak_nbytes": plan.budget_nbytes,
        "account_peak_nbytes": max(result.peak_nbytes for result in kept),
        "swapped_in_nbytes": kept[-1].swapped_in_nbytes,
        "recomputed_ops": kept[-1].recomputed_ops,
        "ops": len(subject.step.graph.ops),
    }


def _apart() -> AbstractContextManager[object]:
    """Have no updates wait for each other, to see what it saves that they do."""
    return patch.object(gathered_updates, "TOGETHER_NBYTES", 0)


def _train(subject: Subject, device: Device, plan: JobPlan, runs: int, *, replay: bool) -> _Trained:
    told = Told()
    kept: list[IterationResult] = []
    times_ns: list[int] = []
    with JobMemory(
        device,
        job=JobId(1),
        budget_nbytes=_budget_nbytes(subject, device, plan),
        state=subject.state,
        seed=SEED,
    ) as memory:
        executor = Executor(subject.step, memory, replay=replay, tell=told)
        executor.adopt(plan.program)
        for number in range(1, 1 + _WARM_UP + runs):
            begin_ns = time.perf_counter_ns()
            result = executor.run_iteration(subject.batch, number)
            if number > _WARM_UP:
                times_ns.append(time.perf_counter_ns() - begin_ns)
                kept.append(result)
        state = executor.state()
        begin_ns = time.perf_counter_ns()
        executor.run_iteration(subject.batch, 1 + _WARM_UP + runs, sample_latencies=True)
        sampled_ns = time.perf_counter_ns() - begin_ns
        executor.close()
    return _Trained(said=told.said, state=state, results=kept, times_ns=times_ns, sampled_ns=sampled_ns)


def _budget_nbytes(subject: Subject, device: Device, plan: JobPlan) -> int:
    """Return room for a recording beside what an iteration op by op holds, which samples its latencies."""
    return min(device.spec.memory_nbytes, plan.budget_nbytes + _recorded_nbytes(subject, plan))


def _recorded_nbytes(subject: Subject, plan: JobPlan) -> int:
    return recorded_memory(subject.step.graph, plan.program, steers=False).nbytes
