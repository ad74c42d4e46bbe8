"""How much memory recordings would take, were each tensor's place chosen ahead.

What is taken down as a CUDA graph has its tensors where PyTorch's allocator puts them: in the smallest hole
there is when it is asked (scheduler/sharing/growing_range.py).  All lifetimes are known before, so places
could be chosen: at will, by greedy orders of offline dynamic storage allocation, and as near to that as the
allocator can be made to give them (steered.py).  For plans within a share of what eager PyTorch holds, on a
simulated H200.

    python -m bench.placing [--share 0.5] [--captures FOLDER]

Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, "Greedy by Size".
Differs: sizes are weighed by powers of how long they are held, of which the best is taken.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.results import provenance, table, write
from bench.steered import Lifetime, Place, end_of, steered
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing.growing_range import (
    SMALL_NBYTES,
    alive_nbytes,
    asked_for,
    in_granules,
    in_pages,
    ranges_nbytes,
)

#: (network, batch) of some that `make bench-gpu` measures within half of the memory.
CASES = (("resnet50", 16), ("vit", 16), ("vit", 64), ("vgg16", 16), ("vgg16", 64), ("gpt", 8))


#: Whom to place first: the largest of bytes times this power of the time.
POWERS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


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
            found.append(Lifetime(begin, time, in_granules(held_nbytes)))
    return found + [Lifetime(begin, time + 1, in_granules(nbytes)) for begin, nbytes in begun.values()]


def placed(found: Sequence[Lifetime], power: float) -> list[Place]:
    """Return places: each where the least is left over beside those before that live with it."""
    places: list[Place] = []
    for each in sorted(found, key=lambda each: (-each.nbytes * (each.end - each.begin) ** power, each.begin)):
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
        places.append(Place(top if best[0] == float("inf") else best[1], each))
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
    asked = list(asked_for(made, plan.program))
    # Small tensors have a range of their own, in which nothing is chosen.
    small, large = ranges_nbytes(asked)
    found = lifetimes(each for each in asked if each[2] > SMALL_NBYTES)
    chosen = [placed(found, power) for power in POWERS]
    ways = {
        "as the allocator": small + large,
        "steered": small + min(in_pages(end_of(steered(places))) for places in chosen),
        "at will": small + min(in_pages(end_of(places)) for places in chosen),
    }
    return {
        "network": name,
        "batch": batch,
        "alive_nbytes": alive,
        **{way: round(nbytes / alive, 3) for way, nbytes in ways.items()},
    }


if __name__ == "__main__":
    main()
