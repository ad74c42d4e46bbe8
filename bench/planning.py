"""How long planning takes: a first plan for resnet50 with Adam, and one for five networks together.

    python -m bench.planning [--batch-size 16] [--rounds 5]

Batch 16 at each network's own image size, latencies from the roofline of `sim:a6000`; one core, medians of
rounds.  Capture is timed once for each network, beside.
"""

import argparse
import time
from dataclasses import replace
from statistics import median

from bench.results import provenance, table, write
from tensile_db.capture.architectures import build, default_image_size
from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step
from tensile_db.graph import StepGraph
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.timeline import simulate

NETWORKS = ("vgg16", "resnet50", "inception_v3", "inception_v4", "densenet121")
DEVICE = machine("sim:a6000")


def main() -> None:
    """Plan, write the times, and print them as a table."""
    parser = argparse.ArgumentParser(description="Planning times.")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    jobs, captured_s = [], {}
    for number, name in enumerate(NETWORKS):
        begin_s = time.perf_counter()
        graph = _capture(name, arguments.batch_size)
        captured_s[name] = round(time.perf_counter() - begin_s, 2)
        latencies_ns = predict_latencies_ns(graph, DEVICE)
        jobs.append(JobRequest(job_id=number, graph=graph, latencies_ns=latencies_ns))
    rows = []
    for job, name in zip(jobs, NETWORKS, strict=True):
        peak_nbytes = simulate(job.graph, job.latencies_ns, vanilla.plan_one(job.graph), DEVICE).peak_nbytes
        for label, share in (("ample", None), ("50 %", 0.5), ("35 %", 0.35)):
            memory_nbytes = DEVICE.memory_nbytes if share is None else int(share * peak_nbytes)
            memory_nbytes = max(memory_nbytes, lower_bound_peak_nbytes(job.graph))
            rows.append(_time(name, label, [job], memory_nbytes, arguments.rounds))
    rows.append(_time("all five together", "ample", jobs, DEVICE.memory_nbytes, arguments.rounds))
    document = provenance("bench.planning") | {
        "device": DEVICE.name,
        "ops": {name: len(job.graph.ops) for name, job in zip(NETWORKS, jobs, strict=True)},
        "capture_s": captured_s,
        "rows": rows,
    }
    path = write("planning", document)
    print(table(["jobs", "memory", "seconds", "MSR", "EOR"], [list(row.values()) for row in rows]))
    print(f"capture, seconds: {captured_s}\nwritten to {path}")


def _capture(name: str, batch_size: int) -> StepGraph:
    size = default_image_size(name, (512, 512))[0]
    model = build(name, num_outputs=1000, input_shape=(3, size, size), seed=1, options={})
    shape = (batch_size, 3, size, size)
    return capture_train_step(model, batch_shape=shape, target="classes", optimizer=configure("adam")).graph


def _time(
    name: str, memory: str, jobs: list[JobRequest], memory_nbytes: int, rounds: int
) -> dict[str, object]:
    device = replace(DEVICE, memory_nbytes=memory_nbytes)
    seconds = []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        plans = plan_jobs(jobs, device)
        seconds.append(time.perf_counter() - begin_s)
    vanilla_nbytes = sum(plan.prediction.vanilla_peak_nbytes for plan in plans)
    vanilla_ns = sum(plan.prediction.vanilla_time_ns for plan in plans)
    return {
        "jobs": name,
        "memory": memory,
        "seconds": round(median(seconds), 3),
        "msr": round(1 - sum(plan.prediction.peak_nbytes for plan in plans) / vanilla_nbytes, 3),
        "eor": round(sum(plan.prediction.time_ns for plan in plans) / vanilla_ns, 3),
    }


if __name__ == "__main__":
    main()
