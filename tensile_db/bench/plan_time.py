"""How long planning takes, and how much memory: for real networks, and for ever deeper ones.

The deep ones are ResNets with more and more bottleneck blocks in the third stage, of a quarter of the usual
channels, trained with Adam.  Each plan is made in a process of its own, on one core, so that its memory is
its own; times are processor times.  They depend on the machine that runs this, not on the device planned for.

Wanted of plans that somebody waits for: resnet50's first with Adam in 0.2 s, those of the five networks
in lanes in 1 s, a re-plan in 0.05 s, and time near-linear in ops.
"""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import Workload, workload
from tensile_db.bench.planned_alone import Change, measure
from tensile_db.bench.planned_arrival import measure_arrival
from tensile_db.bench.reports.known import check_alike
from tensile_db.bench.reports.plan_time_parts import Part, results_of, staying
from tensile_db.graph import StepGraph
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import require_policy

#: Budgets as shares of eager's peak; None is ample.
SHARES = (None, 0.5, 0.35)
TOGETHER_SHARES = (None, 0.7, 0.5, 0.3)
#: Of plans that are made again.
AGAIN_SHARE = 0.5
#: Policies that begin with the plan in force, and that make first plans at once for those who wait.
AGAIN_POLICIES = ("auto",)
#: Memory when a job comes, as shares of all eager peaks: to another one like it, and to one of each network.
PAIR_SHARES = (0.5, 0.3)
ALL_SHARES = (0.3, 0.2)
#: Ops that the curve reaches for.
CURVE_OPS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
#: Of the curve.
CURVE_SHARE = 0.5
ROUNDS = 3
#: A bottleneck block trained with Adam is about so many ops, the rest of such a ResNet about so many.
_BLOCK_OPS, _OTHER_OPS = 90, 560
_CURVE_BATCH = 16


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str],
    policies: Sequence[str],
    batch: int,
    optimizer: str,
    curve_ops: Sequence[int] = CURVE_OPS,
    rounds: int = ROUNDS,
    known: Mapping[str, Any] | None = None,
    only: Part | None = None,
    find: Callable[[str], None] = require_policy,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document; tell: told what is being done.

    only: the part that is measured, where `known`, a document, has the other, which stays; else all is.
    find: has a policy at hand in a process that has just begun, and can be sent there.
    Raises InvalidRequest where the known document is of another device, optimizer or batch.
    """
    document: dict[str, Any] = {
        "bench": "plan-time",
        "device": asdict(device),
        "workload": {"networks": list(networks), "batch": batch, "optimizer": optimizer, "rounds": rounds},
    }
    if known is not None:
        check_alike(known, document, "optimizer", "batch")
    stays = {} if known is None or only is None else staying(known, only)
    graphs = {name: captures.graph(workload(name), batch, optimizer) for name in networks}
    again, first = (results_of(stays, part) for part in (Part.AGAIN, Part.FIRST))
    document |= again or _measured_again(graphs, device, policies, rounds, tell)
    document |= first or {
        "rows": _first_plans(graphs, device, policies, rounds, find, tell),
        "curve": _curve(captures, device, policies, curve_ops, find, tell),
    }
    return document | stays


def _curve(
    captures: Captures,
    device: DeviceSpec,
    policies: Sequence[str],
    curve_ops: Sequence[int],
    find: Callable[[str], None],
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return rows of first plans of ever deeper ResNets."""
    curve = []
    for ops in curve_ops:
        tell(f"a ResNet of about {ops} ops")
        graph = captures.graph(_deep_resnet(ops), _CURVE_BATCH, "adam")
        for policy in policies:
            tell(f"{policy}: {len(graph.ops)} ops")
            for at_once in _at_once(policy):
                made = _measured([graph], device, policy, CURVE_SHARE, 1, find=find, at_once=at_once)
                row = {"ops": len(graph.ops), "tensors": len(graph.tensors), "policy": policy}
                curve.append(row | {"at_once": at_once} | made)
    return curve


def _first_plans(
    graphs: Mapping[str, StepGraph],
    device: DeviceSpec,
    policies: Sequence[str],
    rounds: int,
    find: Callable[[str], None],
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return rows of first plans, of one job and of all."""
    rows = []
    together = list(graphs.values())
    for policy in policies:
        asked = [(name, [graph], share) for name, graph in graphs.items() for share in SHARES]
        asked += [("all together", together, share) for share in TOGETHER_SHARES]
        if policy in AGAIN_POLICIES:
            asked += [("all in lanes", together, share) for share in TOGETHER_SHARES]
        for name, planned, share in asked:
            tell(f"{policy}: {name}")
            # No worker plans jobs side by side, so nobody waits for that.
            for at_once in (False,) if name == "all together" else _at_once(policy):
                lanes = name == "all in lanes"
                made = _measured(
                    planned, device, policy, share, rounds, find=find, in_lanes=lanes, at_once=at_once
                )
                row = {"network": name, "policy": policy, "at_once": at_once, "share": share}
                rows.append(row | made)
    return rows


def _at_once(policy: str) -> tuple[bool, ...]:
    """Return for which values of `at_once` first plans are measured: both, where that makes a difference."""
    return (True, False) if policy in AGAIN_POLICIES else (False,)


def _measured_again(
    graphs: Mapping[str, StepGraph],
    device: DeviceSpec,
    policies: Sequence[str],
    rounds: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return re-plans, and arrivals where the policy that has them is among those asked for."""
    again = {"again": _planned_again(graphs, device, policies, rounds, tell)}
    return again | ({"arrived": _arrived(graphs, device, rounds, tell)} if "auto" in policies else {})


def _planned_again(
    graphs: Mapping[str, StepGraph],
    device: DeviceSpec,
    policies: Sequence[str],
    rounds: int,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return rows of re-plans, of one job and of all."""
    again = []
    for policy in [policy for policy in policies if policy in AGAIN_POLICIES]:
        alone = {name: [graph] for name, graph in graphs.items()}
        together = {name: list(graphs.values()) for name in ("all together", "all in lanes")}
        for name, planned in (alone | together).items():
            for change in Change:
                tell(f"{policy}: {name} again, {change}")
                in_lanes = name == "all in lanes"
                made = _measured(planned, device, policy, AGAIN_SHARE, rounds, change, in_lanes=in_lanes)
                row = {"network": name, "policy": policy, "share": AGAIN_SHARE, "change": change}
                again.append(row | made)
    return again


def _arrived(
    graphs: Mapping[str, StepGraph], device: DeviceSpec, rounds: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return rows of newcomers: beside one of the same network, and beside one of each other."""
    rows = []
    for name, graph in graphs.items():
        for share in PAIR_SHARES:
            tell(f"auto: {name} comes to another one")
            made = _apart(measure_arrival, [graph] * 2, device, share, rounds)
            rows.append({"newcomer": name, "running": 1, "share": share} | made)
    for name, graph in graphs.items() if len(graphs) > 1 else ():
        others = [other for other in graphs.values() if other is not graph]
        for share in ALL_SHARES:
            tell(f"auto: {name} comes to one of each other")
            made = _apart(measure_arrival, [*others, graph], device, share, rounds)
            rows.append({"newcomer": name, "running": len(others), "share": share} | made)
    return rows


def _deep_resnet(ops: int) -> Workload:
    """Return a ResNet whose training step has about so many ops."""
    blocks = max(1, (ops - _OTHER_OPS) // _BLOCK_OPS)

    def build(batch: int, scale: int) -> torch.nn.Module:
        from timm.models.resnet import Bottleneck, ResNet

        channels = (16, 32, 64, 128)
        # As many blocks as asked for, all in the third stage but one in each of the others.
        model: torch.nn.Module = ResNet(
            Bottleneck, (1, 1, blocks, 1), channels=channels, zero_init_last=False
        )
        return model

    return Workload(
        name=f"deep_resnet_{blocks}", title="deep ResNet", row_shape=(3, 224, 224), build=build, scales=False
    )


def _measured(
    graphs: Sequence[StepGraph],
    device: DeviceSpec,
    policy: str,
    share: float | None,
    rounds: int,
    change: Change | None = None,
    *,
    find: Callable[[str], None] = require_policy,
    in_lanes: bool = False,
    at_once: bool = False,
) -> dict[str, Any]:
    """Return the median time and the memory of planning the graphs together."""
    return _apart(measure, graphs, device, policy, share, rounds, change, in_lanes, at_once, find)


def _apart(measured: Callable[..., dict[str, Any]], *asked: object) -> dict[str, Any]:
    """Return what is measured in a process of its own."""
    # Spawned, since a fork would begin with what this process holds already.
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(measured, asked)
