"""Several equal jobs at once: planned together in ever less memory, replayed in ample memory, as processes.

Memory is a share of the sum of the jobs' eager peaks, or all there is; makespans are over the same iterations
of one job after another, op by op.  Source: Salus sections 5.1 and 5.4; TENSILE section V-D.
"""

import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from bench.gpu.machine import Machine
from bench.gpu.networks import shared_case
from bench.gpu.processes import with_mps, without_mps
from bench.gpu.results import Results
from bench.gpu.subjects import SEED, Subject, different, open_subject
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.recordable import plan_recordable
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.worker.devices.device import Device
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.turn import Turn
from tensile_db.worker.mailbox import Mailbox
from tensile_db.worker.messages import JobId
from tensile_db.worker.turnstile import Turnstile

#: Jobs, and memory over the sum of their eager peaks.
CASES = ((2, 0.45), (4, 0.28), (8, 0.2))
#: Iterations before the clock is started: what is taken down is so at the third.
_SETTLING_ITERATIONS = 4
_LONGEST_S = 60
#: For as many to start as there are jobs, train, and end.
_PROCESSES_NEED_S = 15


class _Ran(NamedTuple):
    """What came of jobs that ran at once."""

    seconds: float
    states: list[dict[str, torch.Tensor]]
    #: Iterations of all of them that were replayed.
    replayed: int


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Measure the cases, most jobs last."""
    workload, size = shared_case(quick=quick)
    iterations = 3 if quick else 20
    cases = CASES[:1] if quick else CASES
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

    def planned(way: str, on: Device, count: int, share: float | None) -> None:
        memory_nbytes = on.spec.memory_nbytes if share is None else int(share * count * eager_nbytes)
        found = results.attempt(
            f"{count} {way}", 5, lambda: _planned(subject, on, count, memory_nbytes, iterations, state)
        )
        if found is not None:
            ratios = {
                "over_serial": found["seconds"] / count / one_s,
                "over_eager_peaks": found["device_peak_nbytes"] / count / eager_nbytes,
            }
            results.add({"way": way, "jobs": count, "share": share} | ratios | found)

    for count, share in cases:
        planned("planned", device, count, share)
    device.close()
    machine.clean()
    device = machine.open(replay=True)
    # Now without the host's part in handing ops over, which replays do not have.
    measured = results.attempt("measure, to be replayed", 3, lambda: subject.measure(device))
    results.note(measured_to_be_replayed=measured)
    for count in () if measured is None else (1, *(count for count, _ in cases)):
        planned("replayed", device, count, None)
    device.close()
    machine.clean()
    for count, _ in cases:
        for way, start in (("processes", without_mps), ("processes under MPS", with_mps)):
            found = results.attempt(
                f"{count} {way}",
                _PROCESSES_NEED_S,
                lambda c=count, s=start: s(machine, workload.name, size, c, iterations),
            )
            if found is not None:
                results.add({"way": way, "jobs": count, **found})


def _alone(subject: Subject, device: Device, iterations: int) -> tuple[int, float, dict[str, torch.Tensor]]:
    """Return eager's peak by the accounts, and seconds and state of one job with memory for all it likes."""
    plan = subject.plan(device.spec, "vanilla", None)
    shared = _shared(subject, device, 1, plan.budget_nbytes)
    ran = _train(subject, device, shared, iterations, memory_nbytes=plan.budget_nbytes)
    return vanilla.peak_nbytes(subject.step.graph), ran.seconds, ran.states[0]


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
    ran = _train(subject, device, plans, iterations, memory_nbytes=memory_nbytes)
    return {
        "memory_nbytes": memory_nbytes,
        "device_peak_nbytes": device.memory.peak_nbytes,
        "seconds": ran.seconds,
        "replayed": ran.replayed,
        "planning_s": round(planning_s, 2),
        "lanes": len({plan.share.lane for plan in plans}),
        "state_leaves": sum(plan.share.resident_nbytes == 0 for plan in plans),
        # Not all kernels are deterministic here: correctness has its own section.
        "differing_tensors": [len(different(state, want)) for state in ran.states],
    }


def _shared(subject: Subject, device: Device, count: int, memory_nbytes: int) -> tuple[SharedPlan, ...]:
    requests = [
        JobRequest(job_id=number, graph=subject.step.graph, latencies_ns=subject.latencies_ns)
        for number in range(count)
    ]
    spec = replace(device.spec, memory_nbytes=memory_nbytes)
    return plan_recordable(requests, spec)


def _train(
    subject: Subject,
    device: Device,
    plans: tuple[SharedPlan, ...],
    iterations: int,
    *,
    memory_nbytes: int,
) -> _Ran:
    """Run a job for each plan, each in a thread, by turns; seconds are of iterations after the first few."""
    turnstile = Turnstile(memory_nbytes=memory_nbytes)
    ready = threading.Barrier(len(plans) + 1, timeout=60)
    states: dict[int, dict[str, torch.Tensor]] = {}
    #: When each has ended, and how many of its iterations were replayed.
    ended: list[tuple[float, int]] = []
    failures: list[BaseException] = []

    def job(number: int) -> None:
        try:
            states[number] = _job(subject, device, turnstile, plans[number], number, iterations, ready, ended)
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
    return _Ran(
        seconds=max(at_s for at_s, _ in ended) - begin_s,
        states=[states[number] for number in sorted(states)],
        replayed=sum(count for _, count in ended),
    )


def _job(
    subject: Subject,
    device: Device,
    turnstile: Turnstile,
    plan: SharedPlan,
    number: int,
    iterations: int,
    ready: threading.Barrier,
    ended: list[tuple[float, int]],
) -> dict[str, torch.Tensor]:
    job, program = JobId(number + 1), plan.job_plan.program
    turnstile.come_in(job, priority=0)
    try:
        with JobMemory(
            device, job=job, budget_nbytes=plan.share.budget_nbytes, state=subject.state, seed=SEED
        ) as memory:
            turn = Turn(turnstile, Mailbox(), memory, job=job)
            executor = Executor(subject.in_parts(plan.job_plan, device.torch_device).step, memory)
            turn.change(plan.share)
            replayed = 0
            for iteration in range(1, _SETTLING_ITERATIONS + iterations + 1):
                if iteration == _SETTLING_ITERATIONS + 1:
                    is_alone = ready.parties == 2
                    # Others wait for the turn; with the end of one, room and recording of a job alone go.
                    if not is_alone:
                        turn.end()
                    ready.wait()
                assert turn.take(executor, program, left_ns=_SETTLING_ITERATIONS + iterations - iteration)
                result = executor.run_iteration(subject.batch, iteration)
                replayed += result.replayed
                turn.ran(result.elapsed_ns)
            turn.end()
            ended.append((time.monotonic(), replayed))
            state = executor.state()
            executor.close()
    finally:
        turnstile.leave(job)
    return state
