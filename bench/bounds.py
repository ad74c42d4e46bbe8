"""What memory costs at least: the lower bound on EOR for budgets from eager's peak down, and plans beside it.

    python -m bench.bounds [--networks resnet50,…] [--batch-size 16] [--policies tensile]

The five networks of the paper with Adam on `sim:a6000`, latencies from its roofline; deterministic, but
for the seconds that solving takes.  A share is a budget over eager's peak, so MSR is one less the share, at
the least.
"""

import argparse
import time
from typing import Any

from bench.networks import PAPER
from bench.results import provenance, table, write
from tensile_db.capture.architectures import build, default_image_size
from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step
from tensile_db.errors import DoesNotFit
from tensile_db.graph import StepGraph
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.bounds_lp import lower_bound_time_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import POLICIES, vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.timeline import simulate

DEVICE = machine("sim:a6000")
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


def main() -> None:
    """Solve, plan, write the figures, and print them as a table."""
    parser = argparse.ArgumentParser(description="Lower bounds on EOR.")
    parser.add_argument("--networks", default=",".join(PAPER))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--policies", default=",".join(name for name in POLICIES if name != "vanilla"))
    arguments = parser.parse_args()
    policies = [name for name in arguments.policies.split(",") if name]
    networks = [_network(name, arguments.batch_size, policies) for name in arguments.networks.split(",")]
    document = provenance("bench.bounds") | {
        "device": DEVICE.name,
        "workload": f"batch {arguments.batch_size}, Adam, float32",
        "networks": networks,
    }
    path = write("bounds_a6000", document)
    head = ["network", "budget/eager", "bound EOR", *(f"{name} EOR" for name in policies)]
    print(table(head, [row for network in networks for row in _cells(network, policies)]))
    print(
        table(["network", "EOR at MSR 0.5", "at 0.7", "best CBR", "at MSR"], [_summary(n) for n in networks])
    )
    print(f"written to {path}")


def _network(name: str, batch_size: int, policies: list[str]) -> dict[str, Any]:
    graph = _capture(name, batch_size)
    latencies_ns = predict_latencies_ns(graph, DEVICE)
    eager = simulate(graph, latencies_ns, vanilla.plan_one(graph), DEVICE)
    least_nbytes = lower_bound_peak_nbytes(graph)
    budgets = [int(share * eager.peak_nbytes) for share in SHARES]
    rows = []
    for nbytes in [*(nbytes for nbytes in budgets if nbytes > least_nbytes), least_nbytes]:
        begin_s = time.perf_counter()
        bound_ns = lower_bound_time_ns(graph, latencies_ns, DEVICE, nbytes)
        seconds = time.perf_counter() - begin_s
        share = nbytes / eager.peak_nbytes
        eor = bound_ns / eager.period_ns
        rows.append(
            {
                "share": round(share, 4),
                "budget_nbytes": nbytes,
                "bound_ns": bound_ns,
                "bound_eor": round(eor, 4),
                "bound_cbr": round((1 - share) / eor, 4),
                "solving_s": round(seconds, 2),
                "plans": {policy: _planned(graph, latencies_ns, policy, nbytes) for policy in policies},
            }
        )
        print(name, rows[-1], flush=True)
    return {
        "network": name,
        "ops": len(graph.ops),
        "eager_peak_nbytes": eager.peak_nbytes,
        "eager_ns": eager.period_ns,
        "least_nbytes": least_nbytes,
        "rows": rows,
    }


def _capture(name: str, batch_size: int) -> StepGraph:
    size = default_image_size(name, (512, 512))[0]
    model = build(name, num_outputs=1000, input_shape=(3, size, size), seed=1, options={})
    shape = (batch_size, 3, size, size)
    return capture_train_step(model, batch_shape=shape, target="classes", optimizer=configure("adam")).graph


def _planned(
    graph: StepGraph, latencies_ns: tuple[int, ...], policy: str, nbytes: int
) -> dict[str, float] | None:
    """Return the figures of a policy's plan within a budget; None where it has none."""
    job = JobRequest(
        job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy, memory_limit_nbytes=nbytes
    )
    try:
        (made,) = plan_jobs([job], DEVICE)
    except DoesNotFit:
        return None
    return {"msr": round(made.prediction.msr, 4), "eor": round(made.prediction.eor, 4)}


def _cells(network: dict[str, Any], policies: list[str]) -> list[list[object]]:
    return [
        [
            network["network"],
            row["share"],
            row["bound_eor"],
            *(row["plans"][name]["eor"] if row["plans"][name] else "does not fit" for name in policies),
        ]
        for row in network["rows"]
    ]


def _summary(network: dict[str, Any]) -> list[object]:
    by_share = {row["share"]: row["bound_eor"] for row in network["rows"]}
    best = max(network["rows"], key=lambda row: row["bound_cbr"])
    return [
        network["network"],
        by_share.get(0.5, "out of reach"),
        by_share.get(0.3, "out of reach"),
        best["bound_cbr"],
        round(1 - best["share"], 4),
    ]


if __name__ == "__main__":
    main()
