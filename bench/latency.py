"""How well op latencies are predicted before a job has ever run, and what that does to its first plan.

Probes are measured for a while and models learned, as `tensile-db calibrate` does; their errors are of shapes
held out.  The same probes are measured once more, which shows the machine's noise.  Then whole networks, of
which the models have seen nothing, are predicted and really run on the `cpu` device: vanilla, and by TENSILE
plans made from a roofline, from the models, and from measured latencies, which is where the moving averages
arrive.  The link is paced as in bench/paced.py.

    python -m bench.latency [--seconds 240] [--networks resnet50,...] [--batch-size 8] [--image-size 96]
                            [--budget 0.6] [--rounds 3] [--threads 1]

Source: TENSILE sections IV-A and V-B, tables I and II; the 2021 draft's R² of 0.58 on average and 0.81 for
convolutions.
"""

import argparse
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from bench.latency_again import errors_of_again
from bench.latency_report import markdown
from bench.paced import A6000, Network, open_network, slower_than_a6000
from bench.results import ON_CPU, provenance, write
from tensile_db.latency.predictor import predict
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.latency.samples import LatencySample
from tensile_db.latency.training import Errors, Learned, errors_between
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobPlan
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.devices.cores import calibrate
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import IterationResult
from tensile_db.worker.latencies.hardware import hardware_name
from tensile_db.worker.latencies.measuring import Measuring
from tensile_db.worker.latencies.measuring_process import Finished, Learn, Measure, Measured
from tensile_db.worker.latencies.op_features import step_features

AMPLE_NBYTES = 8 * 2**30
#: Of the probes and of learning.
SEED = 0
#: Iterations of a turn; the first one is told apart.
ITERATIONS = 3


def main() -> None:
    """Measure, learn, predict and run; write the results and print them as tables."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    load_before = os.getloadavg()
    spec = _spec(arguments.threads)
    measured = _measure_probes(arguments)
    again = errors_of_again(measured, _measure_probes(arguments))
    samples = [sample for probe in measured for sample in probe.samples]
    learned = _learn(samples, spec)
    networks = [_network(name, arguments, spec, learned) for name in arguments.networks.split(",")]
    document = provenance("bench.latency") | {
        "hardware": hardware_name(torch.device("cpu"), threads=arguments.threads),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "workload": f"batch {arguments.batch_size}, {arguments.image_size} px, Adam, float32",
        "budget": arguments.budget,
        "samples": len(samples),
        "kinds": {
            kind: {"samples": one.sample_count, "roofline_scale": round(one.model.roofline_scale, 3)}
            | ({} if one.errors is None else _errors(one.errors))
            | ({"again": _errors(again[kind])} if kind in again else {})
            for kind, one in sorted(learned.items())
        },
        "average": _average(learned),
        "networks": networks,
    }
    path = write("latency", document)
    text = markdown(document)
    (ON_CPU / "latency.md").write_text(text)
    print(f"{text}\nwritten to {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=240, help="of measuring probes, each time")
    parser.add_argument("--networks", default="resnet50,inception_v3,densenet121,vit_tiny_patch16_224")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--budget", type=float, default=0.6, help="of vanilla's peak")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def _spec(threads: int) -> DeviceSpec:
    device = CpuDevice(memory_nbytes=AMPLE_NBYTES, threads=threads, rates=calibrate(threads))
    device.close()
    return device.spec


def _measure_probes(arguments: argparse.Namespace) -> list[Measured]:
    config = WorkerConfig(dsn="", memory_nbytes=AMPLE_NBYTES, threads=arguments.threads, calibrate=False)
    measuring = Measuring(Measure(config=config, first=0, seed=SEED))
    timer = threading.Timer(arguments.seconds, measuring.stop)
    timer.start()
    measured = [answer for answer in measuring.answers() if isinstance(answer, Measured)]
    timer.cancel()
    return measured


def _learn(samples: Sequence[LatencySample], spec: DeviceSpec) -> Mapping[str, Learned]:
    for answer in Measuring(Learn(samples=tuple(samples), device=spec, seed=SEED)).answers():
        if isinstance(answer, Finished):
            return answer.learned
    raise SystemExit("learning broke off")


def _network(
    name: str, arguments: argparse.Namespace, spec: DeviceSpec, learned: Mapping[str, Learned]
) -> dict[str, Any]:
    size = 224 if name.startswith("vit") else arguments.image_size
    network = open_network(name, batch_size=arguments.batch_size, image_size=size)
    step = network.step
    features = step_features(step)
    models = {kind: one.model for kind, one in learned.items()}
    begin_s = time.perf_counter()
    predicted = predict(step_features(step), models, spec, utilization=0.0)
    prediction_s = time.perf_counter() - begin_s
    roofline_ns = predict_latencies_ns(step.graph, spec)
    vanilla = network.plan(roofline_ns, spec, "vanilla", AMPLE_NBYTES)
    measured_ns = _latencies(network, vanilla, arguments.threads)
    is_convolution = [op.kind.startswith("aten.convolution") for op in features]
    link = int(A6000.d2h_bytes_per_s / slower_than_a6000(step.graph, measured_ns))
    paced = replace(spec, d2h_bytes_per_s=link, h2d_bytes_per_s=link)
    budget_nbytes = int(arguments.budget * vanilla.prediction.vanilla_peak_nbytes)
    plans = {"vanilla": vanilla} | {
        label: network.plan(latencies_ns, paced, "tensile", budget_nbytes)
        for label, latencies_ns in (
            ("cold, roofline", roofline_ns),
            ("cold, learned", predicted.latencies_ns),
            ("steady", measured_ns),
        )
    }
    runs = _run_in_turns(network, plans, link, arguments)
    return {
        "network": name,
        "image_size": size,
        "ops": len(features),
        "learned_ops": predicted.learned_count,
        "prediction_s": round(prediction_s, 3),
        "measured_ns": sum(measured_ns),
        "predicted": {
            label: {
                "sum_ns": sum(ns),
                "all": _errors(errors_between(ns, measured_ns)),
                "convolutions": _errors(
                    errors_between(_where(ns, is_convolution), _where(measured_ns, is_convolution))
                ),
            }
            for label, ns in (("roofline", roofline_ns), ("learned", predicted.latencies_ns))
        },
        "link_bytes_per_s": link,
        "budget_nbytes": budget_nbytes,
        "plans": [_row(label, plans[label], runs[label], runs["vanilla"]) for label in plans],
    }


def _where(values: Sequence[int], wanted: Sequence[bool]) -> list[int]:
    return [value for value, yes in zip(values, wanted, strict=True) if yes]


def _latencies(network: Network, vanilla: JobPlan, threads: int) -> tuple[int, ...]:
    """Return the median of each op's latency over five iterations after one that warms up."""
    runs = network.run(
        vanilla,
        link_bytes_per_s=A6000.d2h_bytes_per_s,
        iterations=6,
        threads=threads,
        sample_latencies=True,
    )[1:]
    sampled = [run.latencies_ns for run in runs if run.latencies_ns is not None]
    return tuple(max(1, int(median(times))) for times in zip(*sampled, strict=True))


def _run_in_turns(
    network: Network,
    plans: Mapping[str, JobPlan],
    link: int,
    arguments: argparse.Namespace,
) -> dict[str, list[list[IterationResult]]]:
    runs: dict[str, list[list[IterationResult]]] = {label: [] for label in plans}
    for _ in range(arguments.rounds):
        for label, plan in plans.items():
            runs[label].append(
                network.run(
                    plan,
                    link_bytes_per_s=link,
                    iterations=ITERATIONS,
                    threads=arguments.threads,
                    sample_latencies=False,
                )
            )
    return runs


def _row(
    label: str, plan: JobPlan, turns: list[list[IterationResult]], vanilla: list[list[IterationResult]]
) -> dict[str, Any]:
    peak_nbytes = max(run.peak_nbytes for turn in turns for run in turn)
    vanilla_peak_nbytes = max(run.peak_nbytes for turn in vanilla for run in turn)
    msr = 1 - peak_nbytes / vanilla_peak_nbytes
    first_eor = median(turn[0].elapsed_ns for turn in turns) / median(turn[0].elapsed_ns for turn in vanilla)
    later_eor = median(_later_ns(turns)) / median(_later_ns(vanilla))
    return {
        "plan": label,
        "msr": round(msr, 4),
        "eor_of_iteration_one": round(first_eor, 4),
        "eor_of_later_iterations": round(later_eor, 4),
        "predicted_eor": round(plan.prediction.eor, 4),
        "predicted_iteration_ns": plan.prediction.time_ns,
        "median_iteration_ns": int(median(_later_ns(turns))),
        "median_stall_ns": int(median(run.stall_ns for turn in turns for run in turn[1:])),
        "peak_nbytes": peak_nbytes,
        "swapped_out_nbytes": turns[-1][-1].swapped_out_nbytes,
        "recomputed_ops": turns[-1][-1].recomputed_ops,
    }


def _later_ns(turns: list[list[IterationResult]]) -> list[int]:
    return [run.elapsed_ns for turn in turns for run in turn[1:]]


def _errors(errors: Errors) -> dict[str, Any]:
    return {
        "r_squared": _rounded(errors.r_squared),
        "r_squared_log": _rounded(errors.r_squared_log),
        "median_relative_error": round(errors.median_relative_error, 3),
        "count": errors.sample_count,
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _average(learned: Mapping[str, Learned]) -> dict[str, float]:
    errors = [one.errors for one in learned.values() if one.errors is not None]
    squares = [error.r_squared for error in errors if error.r_squared is not None]
    logs = [error.r_squared_log for error in errors if error.r_squared_log is not None]
    if not squares or not logs:
        raise SystemExit("no model was learned: measure for longer, by --seconds")
    return {
        "models": len(errors),
        "mean_r_squared": round(sum(squares) / len(squares), 3),
        "median_r_squared": round(median(squares), 3),
        "mean_r_squared_log": round(sum(logs) / len(logs), 3),
        "median_r_squared_log": round(median(logs), 3),
        "median_relative_error": round(median(error.median_relative_error for error in errors), 3),
    }


if __name__ == "__main__":
    main()
