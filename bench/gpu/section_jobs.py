"""Several equal jobs at once: planned together in ever less memory, one after another, and as processes.

Memory is a share of the sum of the jobs' eager peaks; makespans are over the same iterations of one job after
another.  Source: Salus sections 5.1 and 5.4; TENSILE section V-D.
"""

import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from bench.gpu.machine import Machine
from bench.gpu.networks import shared_case
from bench.gpu.processes import with_mps, without_mps
from bench.gpu.results import Results
from bench.gpu.subjects import SEED, Subject, different, open_subject
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tensile_db.worker.devices.device import Device
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.turn import Turn
from tensile_db.worker.mailbox import Mailbox
from tensile_db.worker.messages import JobId
from tensile_db.worker.turnstile import Turnstile

#: Jobs, and memory over the sum of their eager peaks.
_LONGEST_S = 60
CASES = ((2, 0.45), (4, 0.28), (8, 0.2))


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Measure the cases, most jobs last."""
    workload, size = shared_case(quick=quick)
    iterations = 3 if quick else 20
    device = machine.open()
    subject = results.attempt("capture", 10, lambda: open_subject(workload, size, machine))
    if subject is None:
        return
    measured = results.attempt("measure", 3, lambda: subject.measure(device))
    results.note(network=subject.name, batch=subject.size, iterations=iterations, measured=measured)
    alone = results.attempt("alone", 3, lambda: _alone(subject, device, iterations))
    if alone is None:
        return
    eager_nbytes, one_s, state = alone
    results.add({"way": "alone", "seconds": one_s, "eager_nbytes": eager_nbytes})
    for count, share in CASES:
        found = results.attempt(
            f"{count} planned",
            5,
            lambda c=count, s=share: _planned(
                subject, device, c, int(s * c * eager_nbytes), iterations, state
            ),
        )
        if found is not None:
            took = {
                "way": "planned",
                "jobs": count,
                "share": share,
                "over_serial": found["seconds"] / count / one_s,
            }
            took["over_eager_peaks"] = found["device_peak_nbytes"] / count / eager_nbytes
            results.add(took | found)
    device.close()
    machine.clean()
    for count, _ in CASES[:1] if quick else CASES:
        for way, start in (("processes", without_mps), ("processes under MPS", with_mps)):
            found = results.attempt(
                f"{count} {way}", 25, lambda c=count, s=start: s(machine, workload.name, size, c, iterations)
            )
            if found is not None:
                results.add({"way": way, "jobs": count, **found})


def _alone(subject: Subject, device: Device, iterations: int) -> tuple[int, float, dict[str, torch.Tensor]]:
    """Return eager's peak by the accounts, and seconds and state of one job with memory for all it likes."""
    plan = subject.plan(device.spec, "vanilla", None)
    shared = _shared(subject, device, 1, plan.budget_nbytes)
    _train(subject, device, shared, 2, memory_nbytes=plan.budget_nbytes)
    took_s, states = _train(subject, device, shared, iterations, memory_nbytes=plan.budget_nbytes)
    return vanilla.peak_nbytes(subject.step.graph), took_s, states[0]


def _planned(
    subject: Subject,
    device: Device,
    count: int,
    memory_nbytes: int,
    iterations: int,
    want: dict[str, torch.Tensor],
) -> dict[str, Any]:
    begin_s = time.monotonic()
    plans = _shared(subject, device, count, memory_nbytes)
    planning_s = time.monotonic() - begin_s
    device.memory.reset_peak()
    took_s, states = _train(subject, device, plans, iterations, memory_nbytes=memory_nbytes)
    return {
        "memory_nbytes": memory_nbytes,
        "device_peak_nbytes": device.memory.peak_nbytes,
        "seconds": took_s,
        "planning_s": round(planning_s, 2),
        "lanes": len({plan.share.lane for plan in plans}),
        "state_leaves": sum(plan.share.resident_nbytes == 0 for plan in plans),
        # Not all kernels are deterministic here: correctness has its own section.
        "differing_tensors": [len(different(state, want)) for state in states],
    }


def _shared(subject: Subject, device: Device, count: int, memory_nbytes: int) -> tuple[SharedPlan, ...]:
    requests = [
        JobRequest(job_id=number, graph=subject.step.graph, latencies_ns=subject.latencies_ns)
        for number in range(count)
    ]
    return plan_shared(requests, replace(device.spec, memory_nbytes=memory_nbytes))


def _train(
    subject: Subject,
    device: Device,
    plans: tuple[SharedPlan, ...],
    iterations: int,
    *,
    memory_nbytes: int,
) -> tuple[float, list[dict[str, torch.Tensor]]]:
    """Run a job for each plan, each in a thread, by turns; return the seconds and the jobs' last states."""
    turnstile = Turnstile(memory_nbytes=memory_nbytes)
    ready = threading.Barrier(len(plans) + 1, timeout=60)
    states: dict[int, dict[str, torch.Tensor]] = {}
    ended_s: list[float] = []
    failures: list[BaseException] = []

    def job(number: int) -> None:
        try:
            states[number] = _job(
                subject, device, turnstile, plans[number], number, iterations, ready, ended_s
            )
        except BaseException as error:  # noqa: BLE001  # told to the caller
            failures.append(error)
            ready.abort()

    threads = [threading.Thread(target=job, args=(number,), daemon=True) for number in range(len(plans))]
    for thread in threads:
        thread.start()
    with suppress(threading.BrokenBarrierError):
        ready.wait()
    begin_s = time.monotonic()
    for thread in threads:
        thread.join(_LONGEST_S)
        if failures:
            raise failures[0]
        if thread.is_alive():
            raise TimeoutError(f"jobs still ran after {_LONGEST_S} s")
    return max(ended_s) - begin_s, [states[number] for number in sorted(states)]


def _job(
    subject: Subject,
    device: Device,
    turnstile: Turnstile,
    plan: SharedPlan,
    number: int,
    iterations: int,
    ready: threading.Barrier,
    ended_s: list[float],
) -> dict[str, torch.Tensor]:
    job, program = JobId(number + 1), plan.job_plan.program
    turnstile.come_in(job, priority=0)
    try:
        with JobMemory(
            device, job=job, budget_nbytes=plan.share.budget_nbytes, state=subject.state, seed=SEED
        ) as memory:
            turn = Turn(turnstile, Mailbox(), memory, job=job)
            executor = Executor(running(subject, plan, device), memory)
            turn.change(plan.share)
            ready.wait()
            for iteration in range(1, iterations + 1):
                assert turn.take(executor, program, left_ns=iterations - iteration)
                result = executor.run_iteration(subject.batch, iteration)
                turn.ran(result.elapsed_ns)
            turn.end()
            ended_s.append(time.monotonic())
            state = executor.state()
            executor.close()
    finally:
        turnstile.leave(job)
    return state


def running(subject: Subject, plan: SharedPlan, device: Device) -> Any:
    """Return the step as the plan splits it."""
    from tensile_db.capture.packed_step import planned_step

    return planned_step(subject.step, plan.job_plan.plan.rewriting, device.torch_device)
