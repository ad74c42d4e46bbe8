"""The planners against vanilla on the five networks of the paper, really run on the `cpu` device.

The link is paced so that compute and transfer stand to each other as on the paper's A6000: its 24 GB/s each
way, slowed down by as much as this machine's ops are slower than a roofline of the A6000.  Both policies run
in one process, in turns; times are medians, and all else is ratios.

    python -m bench.networks [--networks resnet50,…] [--batch-size 16] [--image-size 0] [--rounds 3]

Source: TENSILE table III and section V-C.
"""

import argparse
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from bench.results import provenance, table, write
from tensile_db.capture.architectures import build, default_image_size
from tensile_db.capture.optimizers import configure
from tensile_db.capture.state import initial_state
from tensile_db.capture.step import CapturedStep
from tensile_db.capture.train_step import capture_train_step
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import Executor, IterationResult
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.messages import JobId

#: The machine of TENSILE section V-A.
A6000 = machine("sim:a6000")
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
SEED = 1
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
    model = build(name, num_outputs=1000, input_shape=(3, size, size), seed=SEED, options={})
    optimizer = configure("adam")
    shape = (arguments.batch_size, 3, size, size)
    step = capture_train_step(model, batch_shape=shape, target="classes", optimizer=optimizer)
    state = initial_state(model, optimizer)
    generator = torch.Generator().manual_seed(SEED)
    batch = (
        torch.randn(shape, generator=generator),
        torch.randint(1000, (arguments.batch_size,), generator=generator),
    )
    latencies_ns = _measure(step, state, batch)
    slowness = sum(latencies_ns) / sum(predict_latencies_ns(step.graph, A6000))
    link = int(A6000.d2h_bytes_per_s / slowness)
    spec = replace(A6000, name="cpu", memory_nbytes=AMPLE_NBYTES, d2h_bytes_per_s=link, h2d_bytes_per_s=link)
    vanilla = _plan(step, latencies_ns, spec, "vanilla", AMPLE_NBYTES)
    peak_nbytes = vanilla.prediction.vanilla_peak_nbytes
    ample = _plan(step, latencies_ns, spec, "tensile", AMPLE_NBYTES)
    plans = {"vanilla": vanilla, "tensile, what hides": ample}
    for policy, share in BUDGETS:
        budget_nbytes = int(share * peak_nbytes)
        plans[f"{policy}, {share:.0%}"] = _plan(step, latencies_ns, spec, policy, budget_nbytes)
    runs = _run_in_turns(step, state, batch, plans, link, arguments.rounds)
    return {
        "network": name,
        "image_size": size,
        "ops": len(step.graph.ops),
        "link_bytes_per_s": link,
        "slower_than_a6000": round(slowness, 1),
        "plans": [_row(label, plans[label], runs[label], runs["vanilla"]) for label in plans],
    }


def _measure(
    step: CapturedStep, state: dict[str, torch.Tensor], batch: tuple[torch.Tensor, ...]
) -> tuple[int, ...]:
    """Return each op's latency: the least of three iterations without swaps."""
    runs = _iterate(step, state, batch, _plan(step, None, A6000, "vanilla", AMPLE_NBYTES), AMPLE_NBYTES, 3)
    sampled = [run.latencies_ns for run in runs if run.latencies_ns is not None]
    return tuple(min(times) for times in zip(*sampled, strict=True))


def _plan(
    step: CapturedStep,
    latencies_ns: tuple[int, ...] | None,
    spec: DeviceSpec,
    policy: str,
    budget_nbytes: int,
) -> JobPlan:
    latencies_ns = latencies_ns or predict_latencies_ns(step.graph, spec)
    request = JobRequest(job_id=1, graph=step.graph, latencies_ns=latencies_ns, policy=policy)
    (plan,) = plan_jobs([request], replace(spec, memory_nbytes=budget_nbytes))
    return plan


def _run_in_turns(
    step: CapturedStep,
    state: dict[str, torch.Tensor],
    batch: tuple[torch.Tensor, ...],
    plans: dict[str, JobPlan],
    link: int,
    rounds: int,
) -> dict[str, list[IterationResult]]:
    runs: dict[str, list[IterationResult]] = {label: [] for label in plans}
    for _ in range(rounds):
        for label, plan in plans.items():
            # The first iteration of each turn warms up and is left out.
            runs[label] += _iterate(step, state, batch, plan, link, 3)[1:]
    return runs


def _iterate(
    step: CapturedStep,
    state: dict[str, torch.Tensor],
    batch: tuple[torch.Tensor, ...],
    plan: JobPlan,
    link: int,
    iterations: int,
) -> list[IterationResult]:
    device = CpuDevice(memory_nbytes=plan.budget_nbytes, d2h_bytes_per_s=link, h2d_bytes_per_s=link)
    try:
        with JobMemory(
            device, job=JobId(1), budget_nbytes=plan.budget_nbytes, state=state, seed=SEED
        ) as memory:
            executor = Executor(step, memory)
            executor.adopt(plan.program)
            return [
                executor.run_iteration(batch, iteration, sample_latencies=True)
                for iteration in range(1, iterations + 1)
            ]
    finally:
        device.close()


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
