"""The executor against plain eager PyTorch, with no memory pressure: both train the same network in turns.

    python -m bench.executor_overhead --arch resnet50 --image-size 128 --batch-size 8 --threads 1 --rounds 15

Prints processor times, which neighbours on the machine disturb least, and the median of the rounds' ratios.
Both sides run in one process, in a job's thread, with the same handling of freed memory
(tensile_db/worker/devices/heap.py), and alternate in who goes first.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable

import timm
import torch

from bench.results import provenance, table, write
from tensile_db.capture.optimizers import configure
from tensile_db.capture.state import initial_state
from tensile_db.capture.train_step import capture_train_step
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies.vanilla import plan_one
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.devices.heap import keep_freed_memory
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory

MEMORY_NBYTES = 16 * 1024**3
WARM_UP_ROUNDS = 2


def main() -> None:
    """Read the options and run in a thread, as a job does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    keep_freed_memory()
    job = threading.Thread(target=compare, args=(options,))
    job.start()
    job.join()


def compare(options: argparse.Namespace) -> None:
    """Time both sides and print one line each, then the ratios."""
    torch.set_num_threads(options.threads)
    shape = (options.batch_size, 3, options.image_size, options.image_size)
    model = timm.create_model(options.arch, num_classes=10).train()
    config = configure("sgd", learning_rate=0.01)
    step = capture_train_step(model, batch_shape=shape, target="classes", optimizer=config)
    batch = (torch.randn(shape), torch.randint(0, 10, shape[:1]))
    device = CpuDevice(memory_nbytes=MEMORY_NBYTES, threads=options.threads)
    state = initial_state(model, config)
    with JobMemory(device, job=1, budget_nbytes=MEMORY_NBYTES, state=state, seed=0) as memory:
        executor = Executor(step, memory)
        executor.adopt(lower(step.graph, plan_one(step.graph)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def eager() -> None:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            loss.item()

        def ours() -> None:
            executor.run_iteration(batch, 1)

        eager_ns, ours_ns = [], []
        for number in range(WARM_UP_ROUNDS + options.rounds):
            sides = [(eager, eager_ns), (ours, ours_ns)]
            for side, times_ns in sides if number % 2 else reversed(sides):
                times_ns.append(elapsed(side))
    device.close()
    eager_ns, ours_ns = eager_ns[WARM_UP_ROUNDS:], ours_ns[WARM_UP_ROUNDS:]
    ratios = [own / other for own, other in zip(ours_ns, eager_ns, strict=True)]
    rows: list[list[object]] = [
        ["eager PyTorch", *milliseconds(eager_ns), ""],
        ["executor", *milliseconds(ours_ns), f"{statistics.median(ratios):.3f}"],
    ]
    print(f"{options.arch}, {len(step.graph.ops)} ops, batch {shape}, {options.threads} kernel threads")
    print(table(["", "median ms", "fastest ms", "median of the rounds' ratios"], rows))
    document = provenance("bench.executor_overhead") | {
        "options": vars(options),
        "ops": len(step.graph.ops),
        "eager_ns": eager_ns,
        "executor_ns": ours_ns,
        "ratio_of_medians": statistics.median(ours_ns) / statistics.median(eager_ns),
        "median_of_ratios": statistics.median(ratios),
    }
    print(write("executor_overhead", document))


def milliseconds(times_ns: list[int]) -> list[str]:
    """Return the median and the fastest time."""
    return [f"{statistics.median(times_ns) / 1e6:.1f}", f"{min(times_ns) / 1e6:.1f}"]


def elapsed(run: Callable[[], None]) -> int:
    """Return the processor time of one run, in ns."""
    begin_ns = time.process_time_ns()
    run()
    return time.process_time_ns() - begin_ns


if __name__ == "__main__":
    main()
