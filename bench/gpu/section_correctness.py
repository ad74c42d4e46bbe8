"""Whether planned training gives eager PyTorch's bits, with swaps and recomputation happening.

Kernels are deterministic ones on both sides, eager updates one parameter at a time, as captured steps do.
"""

import json
import logging
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from bench.gpu.machine import Machine, processes_beside_tests
from bench.gpu.networks import correctness_cases, find
from bench.gpu.results import Results
from bench.gpu.subjects import SEED, Eager, Subject, different, open_subject
from tensile_db.bench.networks.workloads import Workload
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.plan import Recompute, SwapIn
from tensile_db.scheduler.policies import vanilla
from tensile_db.worker.devices.device import Device

ITERATIONS = 3
SHARE = 0.6
#: Left to the processes for their ends.
_TIDY_S = 3.0
#: Names that are written down where bits differ.
_SOME = 12


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Compare every network under three policies, some networks at a time: nothing is timed here."""
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(max_workers=processes_beside_tests(), mp_context=spawn) as pool,
    ):
        parts = {
            workload.name: pool.submit(
                _in_a_process,
                machine.name,
                workload.name,
                size,
                Path(folder) / f"{workload.name}.json",
                time.time() + results.left_s - _TIDY_S,
            )
            for workload, size in correctness_cases(quick=quick)
        }
        for name, part in parts.items():
            found = results.attempt(name, 0, part.result)
            if found is not None:
                results.merge(found)


def _in_a_process(device: str, name: str, size: int, path: Path, until_s: float) -> dict[str, Any]:
    """Compare one network in a process of its own; return what was found, as of `Results`.

    until_s: of the clock, which processes have in common.
    """
    logging.basicConfig(level=logging.WARNING)
    results = Results(path, section="correctness", limit_s=until_s - time.time(), facts={})
    machine = Machine(device)
    machine.keep_imports()
    _compare_network(machine, results, find(name), size)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _compare_network(machine: Machine, results: Results, workload: Workload, size: int) -> None:
    """Add an entry for each policy: whether its training has the bits of eager PyTorch's."""
    name = workload.name
    with closing(machine.open(deterministic=True)) as device:
        subject: Subject | None = results.attempt(
            f"{name}: capture", 10, lambda: open_subject(workload, size, machine)
        )
        if subject is None:
            return
        want = results.attempt(f"{name}: eager", 5, lambda: _eager(subject, machine))
        if want is None:
            return
        subject.latencies_ns = predict_latencies_ns(subject.step.graph, device.spec)
        for policy in ("vanilla", "tensile", "auto"):
            entry = results.attempt(
                f"{name}: {policy}", 5, lambda p=policy: _compare(subject, want, p, machine, device)
            )
            if entry is not None:
                results.add(entry)
        machine.clean()


def _eager(subject: Subject, machine: Machine) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the state of two equal eager trainings: where they differ, nothing can be equal to them."""
    states = []
    for _ in range(2):
        training = Eager(subject, machine, plain_optimizer=True)
        with machine.seeded(SEED):
            for _ in range(ITERATIONS):
                training.iterate()
        states.append(training.state())
        del training
        machine.clean()
    return states[0], states[1]


def _compare(
    subject: Subject,
    want: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]],
    policy: str,
    machine: Machine,
    device: Device,
) -> dict[str, Any]:
    eager_nbytes = vanilla.peak_nbytes(subject.step.graph)
    budget_nbytes = None if policy == "vanilla" else int(SHARE * eager_nbytes)
    plan = subject.plan(device.spec, policy, budget_nbytes)
    subject = subject.in_parts(plan, machine.torch_device)
    got = subject.train(device, plan, ITERATIONS)
    machine.clean()
    names, own = different(got, want[0]), different(want[1], want[0])
    largest = max(
        ((got[name].double() - want[0][name].double()).abs().max().item() for name in names if name in got),
        default=0.0,
    )
    events = plan.plan.events
    return {
        "network": subject.name,
        "batch": subject.size,
        "policy": policy,
        "equal": not names,
        "differing": len(names),
        "of": len(want[0]),
        "some": names[:_SOME],
        "largest_difference": largest,
        "eager_differs_from_itself": len(own),
        "swap_ins": sum(isinstance(event, SwapIn) for event in events),
        "recomputed_ops": sum(len(event.ops) for event in events if isinstance(event, Recompute)),
        "packed": len(plan.plan.packed),
        "splits": len(plan.plan.splits),
    }
