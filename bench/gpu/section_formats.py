"""In which arithmetic, and with which memory format of images and weights, a network trains fastest.

Eager PyTorch with the same autocast, gradient scaler and memory format is beside each, all by the kernels
that PyTorch takes when they need not be deterministic.
"""

from typing import Any

from bench.gpu import baselines
from bench.gpu.machine import Machine, spec_facts
from bench.gpu.networks import formats_case
from bench.gpu.results import Results
from bench.gpu.subjects import Eager, Subject, open_subject
from tensile_db.capture.precision import Precision
from tensile_db.worker.devices.device import Device

#: The most telling first.
WAYS: tuple[tuple[Precision, str], ...] = (
    (Precision.FLOAT32, "contiguous"),
    (Precision.BFLOAT16, "channels_last"),
    (Precision.BFLOAT16, "contiguous"),
    (Precision.TF32, "contiguous"),
    (Precision.FLOAT16, "channels_last"),
    (Precision.TF32, "channels_last"),
    (Precision.FLOAT32, "channels_last"),
    (Precision.FLOAT16, "contiguous"),
)
#: Of eager's peak in the same arithmetic; None: as much as the plan likes.
SHARES: tuple[float | None, ...] = (None, 0.5)


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Measure one network in every way, in a dry run in every precision."""
    runs = 3 if quick else 10
    device = machine.open(replay=True)
    results.note(spec=spec_facts(device))
    workload, size = formats_case(quick=quick)
    for precision, memory_format in ways(quick=quick):
        name = f"{workload.name} {size} {precision} {memory_format}"
        subject: Subject | None = results.attempt(
            f"{name}: capture",
            8,
            lambda p=precision, m=memory_format: open_subject(workload, size, machine, p, m),
        )
        if subject is not None:
            case = {"precision": str(precision), "memory_format": memory_format}
            _case(name, case, subject, precision, machine, device, results, runs)
        machine.clean()
    device.close()


def ways(*, quick: bool) -> tuple[tuple[Precision, str], ...]:
    """Return the (precision, memory format) pairs that are measured."""
    return WAYS[:5] if quick else WAYS


def _case(
    name: str,
    case: dict[str, Any],
    subject: Subject,
    precision: Precision,
    machine: Machine,
    device: Device,
    results: Results,
    runs: int,
) -> None:
    case = {"network": subject.name, "batch": subject.size, **case}
    eager = results.attempt(f"{name}: eager", 2, lambda: _eager(subject, precision, machine, runs))
    if eager is not None:
        results.add({**case, "way": "eager", **eager})
    machine.clean()
    measured = results.attempt(f"{name}: measure", 2, lambda: subject.measure(device))
    if measured is None:
        return
    eager_nbytes = (eager or {}).get("max_allocated_nbytes")
    eager_nbytes = eager_nbytes or subject.plan(device.spec, "vanilla", None).budget_nbytes
    for share in SHARES:
        budget_nbytes = None if share is None else int(share * eager_nbytes)
        found = results.attempt(
            f"{name}: auto at {share}",
            2,
            lambda b=budget_nbytes: subject.run_replayed(machine, device, b, iterations=runs),
        )
        if found is not None:
            results.add({**case, "way": "auto", "share": share, **found})


def _eager(subject: Subject, precision: Precision, machine: Machine, runs: int) -> dict[str, Any]:
    with machine.in_precision(precision):
        return baselines.measure(lambda: Eager(subject, machine, precision=precision), machine, runs=runs)
