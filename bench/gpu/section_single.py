"""One job: time and peak against eager PyTorch and its own ways to save memory; the frontier of budgets.

All compute in TF32 where PyTorch may, as eager PyTorch's convolutions do unless told otherwise.  Plans are
replayed within a share of eager's peak, and run op by op within what they hold at most.
"""

from typing import Any

from bench.gpu import baselines
from bench.gpu.machine import Machine, spec_facts
from bench.gpu.networks import frontier_cases
from bench.gpu.results import Results
from bench.gpu.subjects import Subject, open_subject
from tensile_db.bench.networks.workloads import Workload
from tensile_db.capture.precision import Precision
from tensile_db.worker.devices.device import Device

#: Of eager's peak; None: as much as the plan likes.
SHARES: tuple[float | None, ...] = (None, 0.5)
#: Of some networks, all of the frontier, op by op, too, and beside all that PyTorch itself offers.
_THOROUGHLY = 3
_MORE_SHARES: tuple[float | None, ...] = (0.75, 0.35)
_OP_BY_OP: tuple[tuple[str, float | None], ...] = (("vanilla", None), ("auto", 0.5))
#: As compiled networks have it, too.
PRECISION = Precision.TF32


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Measure every network, first the points that the goals name."""
    runs = 3 if quick else 10
    device = machine.open(replay=True)
    results.note(spec=spec_facts(device), precision=str(PRECISION))
    cases = frontier_cases(quick=quick)
    for place, (workload, size) in enumerate(cases):
        _case(workload, size, machine, device, results, runs, thoroughly=place < _THOROUGHLY)
    device.close()


def _case(
    workload: Workload,
    size: int,
    machine: Machine,
    device: Device,
    results: Results,
    runs: int,
    *,
    thoroughly: bool,
) -> None:
    name = f"{workload.name} {size}"
    subject = results.attempt(
        f"{name}: capture", 12, lambda: open_subject(workload, size, machine, PRECISION)
    )
    if subject is None:
        return
    ways: dict[str, dict[str, Any] | None] = {}
    for way, make in baselines.PLAIN:
        if thoroughly or way == "eager":
            ways[way] = baselines.add(
                subject, way, make, machine, results, precision=PRECISION, runs=runs, needs_s=4
            )
    measured = results.attempt(f"{name}: measure", 4, lambda: subject.measure(device))
    if measured is None:
        return
    results.add({"network": subject.name, "batch": subject.size, "way": "measured", **measured})
    eager_nbytes = (ways["eager"] or {}).get("max_allocated_nbytes") or None
    _plans(subject, machine, device, results, eager_nbytes, runs, thoroughly=thoroughly)


def _plans(
    subject: Subject,
    machine: Machine,
    device: Device,
    results: Results,
    eager_nbytes: int | None,
    runs: int,
    *,
    thoroughly: bool,
) -> None:
    eager_nbytes = eager_nbytes or subject.plan(device.spec, "vanilla", None).budget_nbytes
    case = {"network": subject.name, "batch": subject.size}

    def within(share: float | None) -> int | None:
        return None if share is None else int(share * eager_nbytes)

    def op_by_op(policy: str, share: float | None) -> dict[str, Any]:
        return subject.run_planned(machine, device, policy, within(share), iterations=runs)

    def replayed(share: float | None) -> dict[str, Any]:
        return subject.run_replayed(machine, device, within(share), iterations=runs)

    for share in (*SHARES, *_MORE_SHARES) if thoroughly else SHARES:
        found = results.attempt(
            f"{subject.name} {subject.size}: auto {share}", 4, lambda s=share: replayed(s)
        )
        if found is not None:
            results.add({**case, "way": "auto", "share": share, **found})
    for policy, share in _OP_BY_OP if thoroughly else ():
        found = results.attempt(
            f"{subject.name} {subject.size}: {policy} {share}, op by op",
            4,
            lambda p=policy, s=share: op_by_op(p, s),
        )
        if found is not None:
            results.add({**case, "way": f"{policy}, op by op", "share": share, **found})
