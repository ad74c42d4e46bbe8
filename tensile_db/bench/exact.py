"""Small graphs, of which all plans of a kind are tried: how far policies and the bound are from the best.

A graph is a training step of two or three layers over activations of random sizes, on a device whose link
moves 1 GB/s; the budget lies between what its largest op needs and eager's peak.  All is drawn from one seed.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from tensile_db.bench.reports.markdown import table
from tensile_db.errors import DoesNotFit, InvalidRequest
from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, Tensor, TensorId
from tensile_db.scheduler.bound.exact import best_period_ns
from tensile_db.scheduler.bound.time_bound import lower_bound_time_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes, time_of_ops_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest

_LAYERS = (2, 3)
#: An activation's size, and the longest of an op's latencies, in tens of kB and of us.
_LARGEST = 80
_LONGEST = (40, 150, 500)
_UNIT = 10_000
#: Every other graph is for a link that is busy in one direction at a time.
_LINK = DeviceSpec(
    name="sim:small",
    memory_nbytes=2**40,
    d2h_bytes_per_s=10**9,
    h2d_bytes_per_s=10**9,
    duplex=True,
    flops_per_s=10**12,
    memory_bytes_per_s=10**12,
    op_overhead_ns=1,
)
#: Plans that take at most so many times the best one's time are within the project's goal.
_GOAL = 1.03


def run(
    *, policies: Sequence[str], graphs: int, seed: int, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Return the document; equal seeds give equal graphs, however many.  tell: told what is being done."""
    numbers = random.Random(seed)
    rows = []
    for index in range(graphs):
        if index % 20 == 0:
            tell(f"graph {index + 1} of {graphs}")
        graph = layers([_UNIT * numbers.randint(1, _LARGEST) for _ in range(1 + numbers.choice(_LAYERS))])
        longest = numbers.choice(_LONGEST)
        latencies_ns = tuple(_UNIT * numbers.randint(1, longest) for _ in graph.ops)
        device = replace(_LINK, duplex=index % 2 == 0)
        budget_nbytes = numbers.randint(lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph))
        rows.append(_row(graph, latencies_ns, device, budget_nbytes, policies))
    return {
        "bench": "exact",
        "device": asdict(_LINK),
        "seed": seed,
        "policies": list(policies),
        "rows": rows,
    }


def _row(
    graph: StepGraph,
    latencies_ns: tuple[int, ...],
    device: DeviceSpec,
    budget_nbytes: int,
    policies: Sequence[str],
) -> dict[str, Any]:
    best_ns = best_period_ns(graph, latencies_ns, device, budget_nbytes)
    assert best_ns is not None, "whatever is idle can be swapped"
    return {
        "nbytes": [tensor.nbytes for tensor in graph.tensors],
        "latencies_ns": list(latencies_ns),
        "duplex": device.duplex,
        "budget_nbytes": budget_nbytes,
        "ops_ns": time_of_ops_ns(latencies_ns),
        "bound_ns": lower_bound_time_ns(graph, latencies_ns, device, budget_nbytes),
        "best_ns": best_ns,
        "policies": {
            policy: _planned_ns(graph, latencies_ns, replace(device, memory_nbytes=budget_nbytes), policy)
            for policy in policies
        },
    }


def _planned_ns(
    graph: StepGraph, latencies_ns: tuple[int, ...], device: DeviceSpec, policy: str
) -> int | None:
    job = JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy)
    try:
        (made,) = plan_jobs([job], device)
    except (DoesNotFit, InvalidRequest):
        return None
    return made.prediction.time_ns


def layers(nbytes: Sequence[int]) -> StepGraph:
    """Return a step of layers over activations of these sizes, the batch's first, without parameters."""
    count = len(nbytes) - 1
    # Tensor i is an activation, and `count` + i its gradient.
    sizes = [*nbytes, *nbytes[1:]]
    ops = [_op(0, "tensile.load_batch", Phase.FORWARD, [], [0])]
    ops += [_op(1 + i, "layer", Phase.FORWARD, [i], [i + 1], recomputable=True) for i in range(count)]
    ops.append(_op(len(ops), "loss", Phase.BACKWARD, [count], [2 * count]))
    for i in reversed(range(count)):
        made = [count + i] if i else []
        ops.append(_op(len(ops), "layer_backward", Phase.BACKWARD, [i, i + 1, count + 1 + i], made))
    return StepGraph(tensors=tuple(_tensor(i, size) for i, size in enumerate(sizes)), ops=tuple(ops))


def _tensor(index: int, nbytes: int) -> Tensor:
    return Tensor(
        id=TensorId(index),
        nbytes=nbytes,
        dtype="uint8",
        shape=(nbytes,),
        role=Role.ACTIVATION,
        persistent=False,
        name=f"tensor{index}",
    )


def _op(
    index: int,
    target: str,
    phase: Phase,
    reads: Sequence[int],
    writes: Sequence[int],
    *,
    recomputable: bool = False,
) -> Op:
    return Op(
        id=OpId(index),
        target=target,
        phase=phase,
        reads=tuple(map(TensorId, reads)),
        writes=tuple(map(TensorId, writes)),
        workspace_nbytes=0,
        flops=0,
        moved_nbytes=0,
        recomputable=recomputable,
    )


def markdown(document: dict[str, Any]) -> str:
    """Return the table: a row for the bound, and one for each policy."""
    rows: list[list[object]] = []
    for policy in document["policies"]:
        times = [(row["policies"][policy], row["best_ns"]) for row in document["rows"]]
        ratios = [made / best for made, best in times if made is not None]
        if ratios:
            at_best = _share(ratio <= 1 for ratio in ratios)
            close = _share(ratio <= _GOAL for ratio in ratios)
            rows.append([f"`{policy}`", *_spread(ratios), at_best, close])
    bounds = [row["bound_ns"] / row["best_ns"] for row in document["rows"]]
    close = _share(1 / ratio <= _GOAL for ratio in bounds)
    rows.append(["the bound", *_spread(bounds), "", close])
    heads = ["", "graphs", "mean", "least", "most", "not above the best", f"within {_GOAL - 1:.0%} of it"]
    return table(heads, rows)


def _spread(ratios: Sequence[float]) -> list[object]:
    """Return how many there are of times as multiples of the best plan's, and their mean, least and most."""
    return [len(ratios), sum(ratios) / len(ratios), min(ratios), max(ratios)]


def _share(whether: Iterable[bool]) -> str:
    found = list(whether)
    return f"{sum(found) / len(found):.1%}"
