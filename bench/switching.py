"""What it costs to switch from one job to another on the `cpu` device, by where their states are meanwhile.

Equal jobs take turns of an iteration each, in one lane.  From the end of an iteration to the beginning of the
next one, whoever's it is, is a switch.

    stays           all states fit: nothing is copied
    moved ahead     room for one state on its way: it comes while another job computes
    within turns    no room: the lane waits while one state goes and another one comes

    python -m bench.switching [--network resnet18] [--batch-size 16] [--image-size 64] [--iterations 8]
                              [--jobs 3]

Source: Salus sections 3.2.1 and 5.2 (fast job switching).
Differs: turns last one iteration here, whatever the shares would say.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from bench.paced import open_network
from bench.results import provenance, table, write
from bench.sharing import AMPLE_NBYTES, Bench
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan

WAYS = ("stays", "moved ahead", "within turns")


def main() -> None:
    """Run the jobs each way, write the results, and print them as a table."""
    parser = argparse.ArgumentParser(description="What it costs to switch between jobs.")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=3)
    options = parser.parse_args()
    network = open_network(options.network, batch_size=options.batch_size, image_size=options.image_size)
    bench = Bench(network, options.iterations)
    rows = [_row(bench, way, options.jobs, options.iterations) for way in WAYS]
    document = provenance("bench.switching") | {
        "workload": f"{options.network}, batch {options.batch_size}, {options.image_size} px, Adam",
        "jobs": options.jobs,
        "iterations": options.iterations,
        "state_nbytes": network.step.graph.state_nbytes,
        "link_bytes_per_s": bench.link_bytes_per_s,
        "rows": rows,
    }
    path = write("switching", document)
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    print(f"written to {path}")


def _row(bench: Bench, way: str, jobs: int, iterations: int) -> dict[str, Any]:
    (alone,) = bench.plans(1, AMPLE_NBYTES)
    plans = tuple(_sharing(alone, way) for _ in range(jobs))
    memory_nbytes = needed_nbytes(plan.share for plan in plans)
    _, peak_nbytes, _ = bench.run(plans, memory_nbytes, iterations)
    switches_s = _switches_s(bench.spans)
    return {
        "state": way,
        "memory_nbytes": memory_nbytes,
        "peak_nbytes": peak_nbytes,
        "iteration_ms": round(1e3 * median(end_s - begin_s for _, begin_s, end_s in bench.spans), 2),
        "switches": len(switches_s),
        "switch_ms": round(1e3 * median(switches_s), 2),
        "longest_ms": round(1e3 * max(switches_s), 2),
    }


def _switches_s(spans: Sequence[tuple[int, float, float]]) -> list[float]:
    """Return how long each switch took, without those to a job's first iteration: its state comes for it."""
    in_order = sorted(spans, key=lambda span: span[1])
    seen: set[int] = set()
    found = []
    for (before, _, end_s), (job, begin_s, _) in pairwise(in_order):
        seen.add(before)
        if job != before and job in seen:
            found.append(begin_s - end_s)
    return found


def _sharing(alone: SharedPlan, way: str) -> SharedPlan:
    """Return the plan of a job alone with a share in one lane."""
    peak_nbytes, state_nbytes = alone.job_plan.budget_nbytes, alone.job_plan.program.resident_nbytes
    share = Share(lane=0, resident_nbytes=0, ephemeral_nbytes=peak_nbytes)
    if way == "stays":
        share = replace(share, resident_nbytes=state_nbytes, ephemeral_nbytes=peak_nbytes - state_nbytes)
    elif way == "moved ahead":
        share = replace(share, transit_nbytes=state_nbytes)
    return replace(alone, share=share)


if __name__ == "__main__":
    main()
