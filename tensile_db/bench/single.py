"""One job at a time, every policy: how much memory it saves and what that costs.

A policy that aims at a budget is planned for each that is asked for, for what whole ops need at least, and
for others around that of the best CBR, one that splits ops also below what whole ops need; a policy that does
not gives one point.  The lower bound on time for the same budgets stands beside.
On a device of this machine latencies are measured, and each policy's best plan is really run.

Source: TENSILE section V-C and table III; the 2021 draft's table 1.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tensile_db.bench.here import Training, run_best, training
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import Subject, best, eor_at, plan_one, subject, sweep, with_neighbours
from tensile_db.errors import TensileError
from tensile_db.scheduler.bound.time_bound import lower_bound_time_ns
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.timeline import simulate
from tensile_db.worker.devices.device import Device

#: Budgets where none are asked for, of eager's peak.
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
#: What the frontier's table asks for.
TARGETS = (0.5, 0.7)
#: Steps of a memory timeline that are kept for its picture.
_STEPS = 300


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str],
    policies: Sequence[str],
    batch: int,
    optimizer: str,
    shares: Sequence[float] = SHARES,
    with_bound: bool = True,
    here: Device | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document of all networks and policies.

    shares: budgets, of eager's peak; what whole ops need comes on top.  here: this machine's device whose
    spec `device` is, where plans are to run.  tell: told what is being done.
    """

    def subject_of(name: str) -> tuple[Subject, Training | None]:
        if here is None:
            return subject(captures.graph(workload(name), batch, optimizer), device), None
        tell(f"{name}: measured")
        trained = training(here, workload(name), batch, optimizer)
        return trained.job, trained

    return {
        "bench": "single",
        "device": asdict(device),
        "workload": {"networks": list(networks), "batch": batch, "optimizer": optimizer, "dtype": "float32"},
        "shares": sorted(shares, reverse=True),
        "networks": [
            _network(
                *subject_of(name),
                name,
                policies,
                shares,
                with_bound=with_bound,
                tell=tell,
            )
            for name in networks
        ],
    }


def _network(
    job: Subject,
    trained: Training | None,
    name: str,
    policies: Sequence[str],
    shares: Sequence[float],
    *,
    with_bound: bool,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    found: dict[str, Any] = {"network": name} | job.facts
    if with_bound:
        tell(f"{name}: lower bound")
        found["bound"] = bound_points(job, shares)
    found["policies"] = {}
    for policy in policies:
        tell(f"{name}: {policy}")
        found["policies"][policy] = figures_of(with_neighbours(job, policy, sweep(job, policy, shares)))
    if trained is not None:
        tell(f"{name}: best plans run")
        found["measured"] = run_best(
            trained, {policy: made["points"] for policy, made in found["policies"].items()}
        )
    found["timelines"] = _timelines(job, policies)
    return found


def figures_of(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a results file has of one policy's points."""
    chosen = best(points)
    return {
        "points": points,
        "best_cbr": None if chosen is None else chosen["cbr"],
        "eor_at_msr": {str(target): eor_at(points, target) for target in TARGETS},
    }


def bound_points(job: Subject, shares: Sequence[float]) -> list[dict[str, Any]]:
    """Return the least EOR of any plan for each budget, and what the best such plan's CBR could be."""
    budgets = [int(share * job.eager_peak_nbytes) for share in sorted(shares, reverse=True)]
    points = []
    for nbytes in [*(nbytes for nbytes in budgets if nbytes > job.least_nbytes), job.least_nbytes]:
        begin_s = time.perf_counter()
        bound_ns = lower_bound_time_ns(job.graph, job.latencies_ns, job.device, nbytes)
        msr, eor = 1 - nbytes / job.eager_peak_nbytes, bound_ns / job.eager_ns
        points.append(
            {
                "budget_nbytes": nbytes,
                "time_ns": bound_ns,
                "msr": round(msr, 4),
                "eor": round(eor, 4),
                "cbr": round(msr / eor, 4),
                "solving_s": round(time.perf_counter() - begin_s, 2),
            }
        )
    return points


def _timelines(job: Subject, policies: Sequence[str]) -> Mapping[str, list[list[float]]]:
    """Return memory over time (ms, MiB): eager's, and some policies' at half of eager's peak."""
    courses = {
        "vanilla": simulate(job.graph, job.latencies_ns, vanilla.plan_one(job.graph), job.device).memory
    }
    for policy in ("tensile", "auto"):
        if policy in policies:
            try:
                made = plan_one(job, policy, job.eager_peak_nbytes // 2)
            except TensileError:
                continue
            courses[policy] = made.timeline.memory
    return {name: _thinned(memory) for name, memory in courses.items()}


def _thinned(memory: Sequence[tuple[int, int]]) -> list[list[float]]:
    """Return (ms, MiB), of equal slices of time the largest each."""
    slice_ns = max(1, memory[-1][0] // _STEPS)
    highest: dict[int, int] = {}
    for at_ns, nbytes in memory:
        index = at_ns // slice_ns
        highest[index] = max(highest.get(index, 0), nbytes)
    return [[round(index * slice_ns / 1e6, 3), round(nbytes / 2**20, 1)] for index, nbytes in highest.items()]
