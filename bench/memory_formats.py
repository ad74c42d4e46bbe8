"""Trainings whose convolutions have their channels last, against the same ones as they are by default.

    python -m bench.memory_formats [--threads 2] [--rounds 7] [--networks resnet50,…]

Both run by the executor on the `cpu` device with no memory pressure, in one process, an iteration each in
turns.  A round's ratio is of elapsed times; what other programs take, both have to share.
"""

import argparse
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median

import torch

from bench.results import provenance, table, write
from tensile_db.capture.networks import architectures
from tensile_db.capture.networks.memory_format import MEMORY_FORMATS, laid_out
from tensile_db.capture.optimizers import configure
from tensile_db.capture.precision import Precision
from tensile_db.capture.state import initial_state
from tensile_db.capture.train_step import capture_train_step
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies.vanilla import plan_one
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory

#: Batch size and pixels a side.
NETWORKS: Mapping[str, tuple[int, int]] = {
    "resnet50": (16, 112),
    "densenet121": (8, 112),
    "inception_v3": (8, 139),
    "vgg11": (8, 64),
    "efficientnet_b0": (16, 112),
    "mobilenetv3_small_100": (32, 112),
}
CLASSES = 10
MEMORY_NBYTES = 8 * 2**30


def main() -> None:
    """Run the networks in both precisions, write the results, and print them as a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = CpuDevice(memory_nbytes=MEMORY_NBYTES, threads=options.threads)
    rows = [
        {"network": name, "precision": str(precision), "batch_size": batch_size, "image_size": side}
        | compare(device, name, batch_size, side, precision, rounds=options.rounds)
        for name, (batch_size, side) in NETWORKS.items()
        if name in options.networks.split(",")
        for precision in (Precision.FLOAT32, Precision.BFLOAT16)
    ]
    device.close()
    heads = ["network", "precision", "batch", "pixels", "median ms", "channels last", "of it"]
    print(table(heads, [_shown(row) for row in rows]))
    print(write("memory_formats", provenance("bench.memory_formats") | {"rows": rows}))


def compare(
    device: CpuDevice, name: str, batch_size: int, side: int, precision: Precision, *, rounds: int
) -> dict[str, object]:
    """Return the medians of both formats, ns, and the median of the rounds' ratios."""
    shape = (batch_size, 3, side, side)
    config = configure("momentum", learning_rate=0.01)
    batch = (torch.randn(shape), torch.arange(batch_size) % CLASSES)
    times_ns: dict[str, list[int]] = {memory_format: [] for memory_format in MEMORY_FORMATS}
    with ExitStack() as stack:
        executors = {}
        for job, memory_format in enumerate(MEMORY_FORMATS):
            model = laid_out(
                architectures.build(name, num_outputs=CLASSES, input_shape=shape[1:], seed=0), memory_format
            )
            step = capture_train_step(
                model, batch_shape=shape, target="classes", optimizer=config, precision=precision
            )
            program = lower(step.graph, plan_one(step.graph))
            memory = JobMemory(
                device,
                job=job,
                budget_nbytes=program.guaranteed_peak_nbytes,
                state=initial_state(model, config),
                seed=0,
            )
            executors[memory_format] = Executor(step, stack.enter_context(memory))
            executors[memory_format].adopt(program)
        for number in range(1, 1 + rounds + 1):
            for memory_format, executor in executors.items():
                begin_ns = time.perf_counter_ns()
                executor.run_iteration(batch, number)
                times_ns[memory_format].append(time.perf_counter_ns() - begin_ns)
    # In the first iteration kernels are prepared.
    contiguous, last = (times_ns[memory_format][1:] for memory_format in ("contiguous", "channels_last"))
    return {
        "contiguous_ns": median(contiguous),
        "channels_last_ns": median(last),
        "ratio": round(median(a / b for a, b in zip(last, contiguous, strict=True)), 3),
    }


def _shown(row: Mapping[str, object]) -> list[object]:
    names = ("network", "precision", "batch_size", "image_size")
    times = (f"{float(str(row[name])) / 1e6:.0f}" for name in ("contiguous_ns", "channels_last_ns"))
    return [*(row[name] for name in names), *times, row["ratio"]]


if __name__ == "__main__":
    main()
