"""What plans a job within half of eager PyTorch's memory gets so that it can be replayed, steered and not.

A recording holds more than its plan's peak; a plan for less memory leaves the room, and takes longer
(scheduler/sharing/recordable.py).  Steered recordings hold less, so that the plan may be for more memory.
For graphs as captured for the processor and an H200 with the rates that it was measured with (bench/results/
h200/device.json), and TF32's arithmetic as fast as makes a GPT and a ViT take the time that they took there;
times are predicted.

    python -m bench.replayed_plans [--share 0.5] [--captures FOLDER]
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.results import provenance, table, write
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.graph import StepGraph
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing.headroom import is_recordable
from tensile_db.scheduler.sharing.recordable import plan_recordable

DEVICE = replace(
    machine("sim:h200"),
    d2h_bytes_per_s=49_382_806_751,
    h2d_bytes_per_s=49_382_806_751,
    memory_bytes_per_s=3_688_110_793_581,
    flops_per_s=150 * 10**12,
    op_overhead_ns=4_000,
    replays=True,
)
#: (network, batch) of some that `make bench-gpu` measures within half of the memory.
CASES = (
    *(("resnet50", batch) for batch in (16, 64)),
    *(("vit", batch) for batch in (16, 64)),
    *(("vgg16", batch) for batch in (16, 64)),
    *(("inception_v3", 16), ("densenet121", 16), ("gpt", 8)),
)


def main() -> None:
    """Plan every case both ways, write the results, and print them as a table."""
    parser = argparse.ArgumentParser(description="What plans are for that are replayed.")
    parser.add_argument("--share", type=float, default=0.5, help="of eager's peak, what jobs may hold")
    parser.add_argument("--captures", type=Path, help="where captured steps are kept")
    options = parser.parse_args()
    captures = Captures(folder=options.captures)
    rows = []
    for name, batch in CASES:
        graph = captures.graph(workload(name), batch, "momentum")
        rows += [
            {"network": name, "batch": batch, "steered": steers}
            | _planned(graph, options.share, steers=steers)
            for steers in (False, True)
        ]
    path = write(
        "replayed_plans", provenance("bench.replayed_plans") | {"share": options.share, "rows": rows}
    )
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    print(f"written to {path}")


def _planned(graph: StepGraph, share: float, *, steers: bool) -> dict[str, Any]:
    """Return whether the plan is replayed, its memory over eager's, and its time over eager's."""
    device = replace(DEVICE, steers=steers)
    eager_nbytes = vanilla.peak_nbytes(graph)
    latencies_ns = predict_latencies_ns(graph, device)
    job = JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, hurried=True)
    (eager,) = plan_jobs([replace(job, policy="vanilla")], device)
    (made,) = plan_recordable([replace(job, memory_limit_nbytes=int(share * eager_nbytes))], device)
    plan = made.job_plan
    return {
        "replayed": is_recordable(made.share, planned_graph(graph, plan.plan), plan.program, device),
        "plan/eager": round(plan.budget_nbytes / eager_nbytes, 3),
        "time/eager": round(plan.prediction.time_ns / eager.prediction.time_ns, 3),
    }


if __name__ == "__main__":
    main()
