"""Whether planned training gives eager PyTorch's bits, with swaps and recomputation happening.

Kernels are deterministic ones on both sides, eager updates one parameter at a time, as captured steps do.
"""

from typing import Any

import torch

from bench.gpu.machine import Machine
from bench.gpu.networks import correctness_cases
from bench.gpu.results import Results
from bench.gpu.subjects import SEED, Eager, Subject, different, open_subject
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.plan import Recompute, SwapIn
from tensile_db.scheduler.policies import vanilla
from tensile_db.worker.devices.device import Device

ITERATIONS = 3
SHARE = 0.6
#: Names that are written down where bits differ.
_SOME = 12


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Compare every network under two policies."""
    device = machine.open(deterministic=True)
    for workload, size in correctness_cases(quick=quick):
        subject = results.attempt(
            f"{workload.name}: capture", 10, lambda w=workload, s=size: open_subject(w, s, machine)
        )
        if subject is None:
            continue
        want = results.attempt(f"{workload.name}: eager", 5, lambda s=subject: _eager(s, machine))
        if want is None:
            continue
        subject.latencies_ns = predict_latencies_ns(subject.step.graph, device.spec)
        for policy in ("vanilla", "tensile", "auto"):
            entry = results.attempt(
                f"{workload.name}: {policy}",
                5,
                lambda s=subject, w=want, p=policy: _compare(s, w, p, machine, device),
            )
            if entry is not None:
                results.add(entry)
        machine.clean()
    device.close()


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
    subject = subject.in_parts(plan, machine)
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
