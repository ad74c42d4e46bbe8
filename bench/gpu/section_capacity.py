"""The largest batch within the memory of smaller cards: eager PyTorch's, and a plan's.

The allocator is told to refuse more than the card would have; a batch counts once it was trained on twice.
Plans are made as the worker would make them on such a card: within what its reserve leaves, with workspaces
measured and charged.  Their latencies alone are predicted, for no whole iteration would fit to be measured.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench.gpu.machine import Machine
from bench.gpu.networks import capacity_cases
from bench.gpu.results import Results
from bench.gpu.subjects import Eager, Subject, only_eager, open_subject
from bench.gpu.too_large import is_out_of_memory
from bench.gpu.workspaces import Workspaces
from tensile_db.bench.networks.workloads import Workload
from tensile_db.errors import DoesNotFit, TensileError
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.request import JobPlan
from tensile_db.worker.config import MAX_JOBS
from tensile_db.worker.devices.cuda.opening import reserve_nbytes
from tensile_db.worker.devices.device import Device

GIB = 2**30
CAPS_GIB = (11, 24)
#: What a driver's context and libraries take of a card, which the allocator knows nothing of.
_CONTEXT_NBYTES = GIB // 2
#: Plans of one batch: with more charged for parts, ops may be split otherwise.
_PLANS = 3
_PLANNED_NEEDS_S = 12
#: Without so much time an op's workspace is guessed.
_MEASURING_LEFT_S = 8


class _Largest(NamedTuple):
    """What was found of eager PyTorch."""

    #: 0: none fits.
    size: int
    #: What the smallest that did not fit failed with; None: there was no time to find out.
    refusal: str | None


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Look for the largest batch, by doubling and then in between."""
    machine.prepare(deterministic=False)
    # Opening a device does so for the process: eager PyTorch is to have it in its first runs, too.  It loses
    # less memory to holes so, and is beaten by less.
    machine.let_segments_grow()
    for workload in capacity_cases(quick=quick):
        for cap_gib in CAPS_GIB:
            cap_nbytes = cap_gib * GIB - _CONTEXT_NBYTES if machine.is_gpu else 8 * 2**20
            eager: _Largest | None = results.attempt(
                f"{workload.name} {cap_gib} GiB: eager",
                10,
                lambda w=workload, c=cap_nbytes: _largest_eager(w, machine, c, results, quick=quick),
            )
            machine.limit(None)
            machine.clean()
            if eager is None:
                continue
            results.add(
                {
                    "network": workload.name,
                    "cap_gib": cap_gib,
                    "eager_batch": eager.size,
                    "eager_refusal": eager.refusal,
                }
            )
            if eager.size:
                _add_planned(workload, machine, cap_gib, cap_nbytes, eager.size, results)


def _largest_eager(
    workload: Workload, machine: Machine, cap_nbytes: int, results: Results, *, quick: bool
) -> _Largest:
    machine.limit(cap_nbytes)
    refusal: str | None = None

    def fits(size: int) -> bool:
        nonlocal refusal
        if not machine.is_gpu:
            # A dry run: the processor refuses nothing.
            return size <= 4
        failure = _train_eagerly(workload, size, machine)
        # The error is gone, and with it the frames that held model and activations.
        machine.clean()
        refusal = failure or refusal
        return failure is None

    size = _largest(fits, 2 if quick else 16, lambda: results.left_s > 8)
    return _Largest(size, refusal)


def _train_eagerly(workload: Workload, size: int, machine: Machine) -> str | None:
    """Train twice on a batch of a size; return what it failed with where memory was short."""
    subject = only_eager(workload, size)
    try:
        training = Eager(subject, machine)
        for _ in range(2):
            training.iterate()
        machine.synchronize()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return f"{type(error).__name__}: {error}"[:300]
    return None


def _add_planned(
    workload: Workload, machine: Machine, cap_gib: int, cap_nbytes: int, eager_size: int, results: Results
) -> None:
    """Add what comes of 2, 4, 8 times eager's batch, until one does not fit."""
    for times in (2, 4, 8):
        found = results.attempt(
            f"{workload.name} {cap_gib} GiB: {times} times eager's batch",
            _PLANNED_NEEDS_S,
            partial(_try, workload, machine, cap_nbytes, times * eager_size, results),
        )
        machine.limit(None)
        machine.clean()
        if found is None:
            break
        results.add({"network": workload.name, "cap_gib": cap_gib, "times": times, **found})
        if "trained" not in found:
            break


def _try(
    workload: Workload, machine: Machine, cap_nbytes: int, size: int, results: Results
) -> dict[str, Any]:
    machine.limit(None)
    subject = open_subject(workload, size, machine)
    device = machine.open()
    try:
        budget_nbytes = cap_nbytes - reserve_nbytes(cap_nbytes, jobs=MAX_JOBS)
        workspaces = Workspaces(
            device, room_nbytes=budget_nbytes, has_time=lambda: results.left_s > _MEASURING_LEFT_S
        )
        machine.limit(cap_nbytes)
        entry: dict[str, Any] = {"batch": size, "budget_nbytes": budget_nbytes}
        try:
            plan = _plan(subject, device, budget_nbytes, workspaces)
        except DoesNotFit as error:
            return entry | {"refused": error.message, "needed_nbytes": error.needed_nbytes}
        finally:
            entry["workspaces"] = workspaces.facts()
        subject = subject.in_parts(plan, machine.torch_device)
        try:
            return entry | {"trained": subject.run(machine, device, plan, iterations=2, warm_up=1)}
        except TensileError as error:
            return entry | {"failed": error.message}
    finally:
        machine.limit(None)
        device.close()


def _plan(subject: Subject, device: Device, budget_nbytes: int, workspaces: Workspaces) -> JobPlan:
    """Plan with workspaces charged, those of parts, too, which the subject has then.  Raises DoesNotFit."""
    subject.step = workspaces.charge(subject.step)
    subject.latencies_ns = predict_latencies_ns(subject.step.graph, device.spec)
    for _ in range(_PLANS - 1):
        plan = subject.plan(device.spec, "auto", budget_nbytes)
        step = workspaces.charge_parts(subject.step, plan.plan.rewriting)
        if step is subject.step:
            return plan
        subject.step = step
    return subject.plan(device.spec, "auto", budget_nbytes)


def _largest(fits: Callable[[int], bool], first: int, has_time: Callable[[], bool]) -> int:
    """Return the largest size found to fit, within a sixteenth; 0 for none."""
    low, high = 0, first
    while has_time() and fits(high):
        low, high = high, 2 * high
    while has_time() and high - low > max(1, high // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
