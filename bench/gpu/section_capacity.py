"""The largest batch within the memory of smaller cards: eager PyTorch's, and a plan's.

The allocator is told to refuse more than the card would have; a batch counts once it was trained on twice.
"""

from collections.abc import Callable
from typing import Any

import torch

from bench.gpu.machine import Machine
from bench.gpu.networks import capacity_cases
from bench.gpu.results import Results
from bench.gpu.subjects import Eager, Subject, draw_batch, network_builder, open_subject
from tensile_db.bench.networks.workloads import Workload
from tensile_db.errors import DoesNotFit, TensileError
from tensile_db.latency.roofline import predict_latencies_ns

GIB = 2**30
CAPS_GIB = (11, 24)
#: What a driver's context and libraries take of a card, which the allocator knows nothing of.
_CONTEXT_NBYTES = GIB // 2


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Look for the largest batch, by doubling and then in between."""
    machine.prepare(deterministic=False)
    for workload in capacity_cases(quick=quick):
        for cap_gib in CAPS_GIB:
            cap_nbytes = cap_gib * GIB - _CONTEXT_NBYTES if machine.is_gpu else 8 * 2**20
            eager = results.attempt(
                f"{workload.name} {cap_gib} GiB: eager",
                10,
                lambda w=workload, c=cap_nbytes: _largest_eager(w, machine, c, results, quick=quick),
            )
            machine.limit(None)
            machine.clean()
            if not eager:
                continue
            planned = results.attempt(
                f"{workload.name} {cap_gib} GiB: planned",
                15,
                lambda w=workload, c=cap_nbytes, e=eager: _largest_planned(w, machine, c, e, results),
            )
            machine.limit(None)
            machine.clean()
            results.add(
                {"network": workload.name, "cap_gib": cap_gib, "eager_batch": eager, "planned": planned}
            )


def _largest_eager(
    workload: Workload, machine: Machine, cap_nbytes: int, results: Results, *, quick: bool
) -> int:
    machine.limit(cap_nbytes)

    def fits(size: int) -> bool:
        if not machine.is_gpu:
            # A dry run: the processor refuses nothing.
            return size <= 4
        build = network_builder(workload, size)
        training = None
        try:
            subject = Subject(
                name=workload.name,
                size=size,
                build=build,
                batch=draw_batch(workload, size, torch.nn.Module()),
                step=None,
                state={},
                capturing_s=0.0,
            )
            training = Eager(subject, machine)
            for _ in range(2):
                training.iterate()
            machine.synchronize()
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            del training
            machine.clean()

    return _largest(fits, 2 if quick else 16, lambda: results.left_s > 8)


def _largest_planned(
    workload: Workload, machine: Machine, cap_nbytes: int, eager_size: int, results: Results
) -> list[dict[str, Any]]:
    """Return what came of 2, 4, 8 times eager's batch, until one does not fit."""
    found: list[dict[str, Any]] = []
    for times in (2, 4, 8):
        if results.left_s < 12:
            found.append({"times": times, "not_reached": True})
            break
        found.append({"times": times} | _try(workload, machine, cap_nbytes, times * eager_size))
        machine.clean()
        if "trained" not in found[-1]:
            break
    return found


def _try(workload: Workload, machine: Machine, cap_nbytes: int, size: int) -> dict[str, Any]:
    machine.limit(None)
    subject = open_subject(workload, size, machine)
    device = machine.open()
    try:
        subject.latencies_ns = predict_latencies_ns(subject.step.graph, device.spec)
        try:
            # Room for kernels' workspaces and cuBLAS's: an eighth.
            plan = subject.plan(device.spec, "auto", cap_nbytes * 7 // 8)
        except DoesNotFit as error:
            return {"batch": size, "refused": error.message, "needed_nbytes": error.needed_nbytes}
        subject = subject.in_parts(plan, machine.torch_device)
        machine.limit(cap_nbytes)
        try:
            return {"batch": size, "trained": subject.run(machine, device, plan, iterations=2, warm_up=1)}
        except TensileError as error:
            return {"batch": size, "failed": error.message}
    finally:
        machine.limit(None)
        device.close()


def _largest(fits: Callable[[int], bool], first: int, has_time: Callable[[], bool]) -> int:
    """Return the largest size found to fit, within a sixteenth; 0 for none."""
    low, high = 0, first
    while has_time() and fits(high):
        low, high = high, 2 * high
    while has_time() and high - low > max(1, high // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
