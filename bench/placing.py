"""How much memory recordings would take, were each tensor's place chosen ahead.

What is taken down as a CUDA graph has its tensors where PyTorch's allocator puts them: in the smallest hole
there is when it is asked (scheduler/sharing/growing_range.py).  All lifetimes are known before, so places
could be chosen: here by two greedy orders of offline dynamic storage allocation.  Sizes are of what is alive
at once, for plans within a share of what eager PyTorch holds, on a simulated H200.

    python -m bench.placing [--share 0.5] [--captures FOLDER]

Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, "Greedy by Size".
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.results import provenance, table, write
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing.growing_range import alive_nbytes, asked_for, range_nbytes

#: (network, batch) of some that `make bench-gpu` measures within half of the memory.
CASES = (("resnet50", 16), ("vit", 16), ("vit", 64), ("vgg16", 16), ("vgg16", 64), ("gpt", 8))


class Lifetime(NamedTuple):
    """Somebody's memory: from when, until when (exclusive), how much."""

    begin: int
    end: int
    nbytes: int


#: Whom to place first, by name.
ORDERS: dict[str, Callable[[Lifetime], Any]] = {
    "largest first": lambda each: (-each.nbytes, each.begin),
    "largest and longest first": lambda each: (-each.nbytes * (each.end - each.begin), each.begin),
}


def main() -> None:
    """Plan every case, place its tensors each way, write the results, and print them as a table."""
    parser = argparse.ArgumentParser(description="What places chosen ahead would save.")
    parser.add_argument("--share", type=float, default=0.5, help="of eager's peak, what plans may hold")
    parser.add_argument("--captures", type=Path, help="where captured steps are kept")
    options = parser.parse_args()
    captures = Captures(folder=options.captures)
    rows = [row for name, batch in CASES if (row := _row(captures, name, batch, options.share))]
    path = write("placing", provenance("bench.placing") | {"share": options.share, "rows": rows})
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    print(f"written to {path}")


def lifetimes(asked: Iterable[tuple[bool, Any, int]]) -> list[Lifetime]:
    """Return what is held when, of (takes or gives, holder, bytes) in order; in order of the ends."""
    begun: dict[Any, tuple[int, int]] = {}
    found = []
    time = 0
    for time, (takes, holder, nbytes) in enumerate(asked, start=1):
        if takes:
            begun[holder] = (time, nbytes)
        else:
            begin, held_nbytes = begun.pop(holder)
            found.append(Lifetime(begin, time, held_nbytes))
    return found + [Lifetime(begin, time + 1, nbytes) for begin, nbytes in begun.values()]


def placed(found: Sequence[Lifetime], order: Callable[[Lifetime], Any]) -> list[tuple[int, Lifetime]]:
    """Return (address, lifetime): each where the least is left over beside those before that live with it."""
    places: list[tuple[int, Lifetime]] = []
    for each in sorted(found, key=order):
        beside = sorted(
            (address, address + other.nbytes)
            for address, other in places
            if other.begin < each.end and each.begin < other.end
        )
        top, best = 0, (float("inf"), 0)
        for begin, end in beside:
            if begin - top >= each.nbytes:
                best = min(best, (begin - top, top))
            top = max(top, end)
        places.append((top if best[0] == float("inf") else best[1], each))
    return places


def _row(captures: Captures, name: str, batch: int, share: float) -> dict[str, Any] | None:
    graph = captures.graph(workload(name), batch, "momentum")
    device = replace(machine("sim:h200"), memory_nbytes=int(share * vanilla.peak_nbytes(graph)))
    request = JobRequest(job_id=1, graph=graph, latencies_ns=predict_latencies_ns(graph, device))
    try:
        (plan,) = plan_jobs([request], device)
    except DoesNotFit:
        return None
    made = planned_graph(graph, plan.plan)
    alive = alive_nbytes(made, plan.program)
    found = lifetimes(asked_for(made, plan.program))
    chosen = {
        way: max(address + each.nbytes for address, each in placed(found, order))
        for way, order in ORDERS.items()
    }
    return {
        "network": name,
        "batch": batch,
        "alive_nbytes": alive,
        "as the allocator": round(range_nbytes(made, plan.program) / alive, 3),
        **{way: round(nbytes / alive, 3) for way, nbytes in chosen.items()},
    }


if __name__ == "__main__":
    main()
