"""One job: time and peak against eager PyTorch and its own ways to save memory; the frontier of budgets.

All compute in TF32 where PyTorch may, as eager PyTorch's convolutions do unless told otherwise.  Plans are
replayed within a share of eager's peak, and run op by op within what they hold at most.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from bench.gpu import baselines
from bench.gpu.machine import Machine, spec_facts
from bench.gpu.networks import frontier_cases
from bench.gpu.results import Results
from bench.gpu.subjects import Eager, Subject, open_subject
from tensile_db.bench.networks.workloads import Workload
from tensile_db.capture.precision import Precision
from tensile_db.worker.devices.device import Device

#: Of eager's peak; None: as much as the plan likes.
SHARES: tuple[float | None, ...] = (None, 0.5)
#: (network, batch) that are come back to: for more budgets, op by op, and what PyTorch itself offers.
_THOROUGHLY = (("resnet50", 16), ("vit", 16), ("vgg16", 16))
_MORE_SHARES: tuple[float | None, ...] = (0.75, 0.35)
_OP_BY_OP: tuple[tuple[str, float | None], ...] = (("vanilla", None), ("auto", 0.5))
#: As compiled networks have it, too.
PRECISION = Precision.TF32


class _Case(NamedTuple):
    """A network that has been measured on the device, and eager PyTorch's peak."""

    subject: Subject
    eager_nbytes: int


class _Bench(NamedTuple):
    """What all cases have in common."""

    machine: Machine
    device: Device
    results: Results
    runs: int


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Measure every network, first the points that the goals name."""
    device = machine.open(replay=True)
    results.note(spec=spec_facts(device), precision=str(PRECISION))
    bench = _Bench(machine, device, results, 3 if quick else 10)
    cases = []
    for workload, size in frontier_cases(quick=quick):
        case = _opened(workload, size, bench)
        if case is None:
            continue
        _replayed(case, SHARES, bench)
        if quick or (workload.name, size) in _THOROUGHLY:
            cases.append(case)
    for case in cases:
        for way, make in baselines.PLAIN:
            if way != "eager":
                _baseline(case.subject, way, make, bench)
        _replayed(case, _MORE_SHARES, bench)
        _op_by_op(case, bench)
    device.close()


def _opened(workload: Workload, size: int, bench: _Bench) -> _Case | None:
    """Capture a network, train it in eager PyTorch, and measure its ops.

    None where there was no time for the first or the last.
    """
    name = f"{workload.name} {size}"
    subject: Subject | None = bench.results.attempt(
        f"{name}: capture", 12, lambda: open_subject(workload, size, bench.machine, PRECISION)
    )
    if subject is None:
        return None
    eager = _baseline(subject, "eager", baselines.eager, bench)
    measured = bench.results.attempt(f"{name}: measure", 4, lambda: subject.measure(bench.device))
    if measured is None:
        return None
    bench.results.add({"network": subject.name, "batch": subject.size, "way": "measured", **measured})
    eager_nbytes = (eager or {}).get("max_allocated_nbytes")
    return _Case(subject, eager_nbytes or subject.plan(bench.device.spec, "vanilla", None).budget_nbytes)


def _baseline(
    subject: Subject, way: str, make: Callable[[Subject, Machine], Eager], bench: _Bench
) -> dict[str, Any] | None:
    return baselines.add(
        subject, way, make, bench.machine, bench.results, precision=PRECISION, runs=bench.runs, needs_s=4
    )


def _replayed(case: _Case, shares: Iterable[float | None], bench: _Bench) -> None:
    """Replay plans within shares of eager's peak."""
    for share in shares:
        limit_nbytes = _within(case, share)
        work = partial(
            case.subject.run_replayed, bench.machine, bench.device, limit_nbytes, iterations=bench.runs
        )
        _add(case, "auto", share, work, bench)


def _op_by_op(case: _Case, bench: _Bench) -> None:
    """Run plans op by op, within what they hold at most."""
    for policy, share in _OP_BY_OP:
        budget_nbytes = _within(case, share)
        work = partial(
            case.subject.run_planned,
            *(bench.machine, bench.device, policy, budget_nbytes),
            iterations=bench.runs,
        )
        _add(case, f"{policy}, op by op", share, work, bench)


def _add(
    case: _Case, way: str, share: float | None, work: Callable[[], dict[str, Any]], bench: _Bench
) -> None:
    network, batch = case.subject.name, case.subject.size
    found = bench.results.attempt(f"{network} {batch}: {way} {share}", 4, work)
    if found is not None:
        bench.results.add({"network": network, "batch": batch, "way": way, "share": share, **found})


def _within(case: _Case, share: float | None) -> int | None:
    return None if share is None else int(share * case.eager_nbytes)
