"""The planners against vanilla on the five networks of the paper, really run on the `cpu` device.

The link is paced as in bench/paced.py.  All plans run in one process, in turns; times are medians, and all
else is ratios.

    python -m bench.networks [--networks resnet50,…] [--batch-size 16] [--image-size 0] [--rounds 3]

Source: TENSILE table III and section V-C.
"""

import argparse
from dataclasses import replace
from statistics import median
from typing import Any

from bench.paced import A6000, SEED, Network, open_network, slower_than_a6000
from bench.results import provenance, table, write
from tensile_db.capture.networks.architectures import default_image_size
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.request import JobPlan
from tensile_db.worker.execution.executor import IterationResult

#: TENSILE table III: MSR, EOR, CBR.
PAPER = {
    "vgg16": (0.2670, 1.6287, 0.1639),
    "inception_v3": (0.4361, 1.6468, 0.2648),
    "inception_v4": (0.5154, 1.4281, 0.3609),
    "resnet50": (0.4258, 1.5540, 0.2740),
    "densenet121": (0.5135, 1.1678, 0.4397),
}
#: Policies and the shares of vanilla's peak within which they plan.
BUDGETS = (("tensile", 0.6), ("tensile", 0.5), ("auto", 0.6), ("auto", 0.5), ("auto", 0.4), ("auto", 0.3))
AMPLE_NBYTES = 64 * 2**30


def main() -> None:
    """Run the networks, write the results, and print them as a table."""
    arguments = _arguments()
    rows = [_network(name, arguments) for name in arguments.networks.split(",")]
    document = provenance("bench.networks") | {
        "workload": f"batch {arguments.batch_size}, Adam, float32, seed {SEED}",
        "rows": rows,
    }
    path = write(arguments.output, document)
    print(
        table(
            ["network", "budget", "MSR", "EOR", "CBR", "measured/guaranteed peak", "paper MSR, EOR, CBR"],
            _cells(rows),
        )
    )
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--networks", default=",".join(PAPER))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=0, help="0: each network's own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", default="networks")
    return parser.parse_args()


def _network(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    size = arguments.image_size or default_image_size(name, (512, 512))[0]
    network = open_network(name, batch_size=arguments.batch_size, image_size=size)
    graph = network.step.graph
    latencies_ns = _measure(network)
    slowness = slower_than_a6000(graph, latencies_ns)
    link = int(A6000.d2h_bytes_per_s / slowness)
    spec = replace(A6000, name="cpu", memory_nbytes=AMPLE_NBYTES, d2h_bytes_per_s=link, h2d_bytes_per_s=link)
    vanilla = network.plan(latencies_ns, spec, "vanilla", AMPLE_NBYTES)
    peak_nbytes = vanilla.prediction.vanilla_peak_nbytes
    ample = network.plan(latencies_ns, spec, "tensile", AMPLE_NBYTES)
    plans = {"vanilla": vanilla, "tensile, what hides": ample}
    for policy, share in BUDGETS:
        budget_nbytes = int(share * peak_nbytes)
        # Below that ops would have to be split.
        if budget_nbytes < lower_bound_peak_nbytes(graph):
            continue
        plans[f"{policy}, {share:.0%}"] = network.plan(latencies_ns, spec, policy, budget_nbytes)
    runs = _run_in_turns(network, plans, link, arguments.rounds)
    return {
        "network": name,
        "image_size": size,
        "ops": len(graph.ops),
        "link_bytes_per_s": link,
        "slower_than_a6000": round(slowness, 1),
        "plans": [_row(label, plans[label], runs[label], runs["vanilla"]) for label in plans],
    }


def _measure(network: Network) -> tuple[int, ...]:
    """Return each op's latency: the least of three iterations without swaps."""
    vanilla = network.plan(predict_latencies_ns(network.step.graph, A6000), A6000, "vanilla", AMPLE_NBYTES)
    runs = network.run(vanilla, link_bytes_per_s=AMPLE_NBYTES, iterations=3, sample_latencies=True)
    sampled = [run.latencies_ns for run in runs if run.latencies_ns is not None]
    return tuple(min(times) for times in zip(*sampled, strict=True))


def _run_in_turns(
    network: Network, plans: dict[str, JobPlan], link: int, rounds: int
) -> dict[str, list[IterationResult]]:
    runs: dict[str, list[IterationResult]] = {label: [] for label in plans}
    for _ in range(rounds):
        for label, plan in plans.items():
            # The first iteration of each turn warms up and is left out.
            runs[label] += network.run(plan, link_bytes_per_s=link, iterations=3, sample_latencies=True)[1:]
    return runs


def _row(
    label: str, plan: JobPlan, runs: list[IterationResult], vanilla: list[IterationResult]
) -> dict[str, Any]:
    peak_nbytes = max(run.peak_nbytes for run in runs)
    vanilla_peak_nbytes = max(run.peak_nbytes for run in vanilla)
    msr = 1 - peak_nbytes / vanilla_peak_nbytes
    eor = median(run.elapsed_ns for run in runs) / median(run.elapsed_ns for run in vanilla)
    return {
        "budget": label,
        "msr": round(msr, 4),
        "eor": round(eor, 4),
        "cbr": round(msr / eor, 4),
        "predicted": {
            "msr": round(plan.prediction.msr, 4),
            "eor": round(plan.prediction.eor, 4),
            "cbr": round(plan.prediction.cbr, 4),
        },
        "peak_nbytes": peak_nbytes,
        "predicted_peak_nbytes": plan.prediction.peak_nbytes,
        "guaranteed_peak_nbytes": plan.prediction.guaranteed_peak_nbytes,
        "median_iteration_ns": int(median(run.elapsed_ns for run in runs)),
        "median_stall_ns": int(median(run.stall_ns for run in runs)),
        "swapped_out_nbytes": runs[-1].swapped_out_nbytes,
        "swapped_in_nbytes": runs[-1].swapped_in_nbytes,
        "recomputed_ops": runs[-1].recomputed_ops,
    }


def _cells(rows: list[dict[str, Any]]) -> list[list[object]]:
    return [
        [
            row["network"],
            plan["budget"],
            plan["msr"],
            plan["eor"],
            plan["cbr"],
            round(plan["peak_nbytes"] / plan["guaranteed_peak_nbytes"], 4),
            PAPER.get(row["network"], "") if plan["budget"] != "vanilla" else "",
        ]
        for row in rows
        for plan in row["plans"]
    ]


if __name__ == "__main__":
    main()
