"""Equal jobs at once, really run on the `cpu` device: by turns in ever less memory, and as mere threads.

The link is paced as in bench/paced.py.  Memory is a share of the sum of the jobs' eager peaks; makespans are
over the same jobs one after another, each in memory for it as it is, run just before and after.
Beside it stands the processor time, which other programs on the machine disturb less.

    python -m bench.sharing [--network resnet50] [--batch-size 16] [--image-size 64] [--iterations 12]
                            [--jobs 2,4,8] [--profile]

Source: Salus sections 5.1 and 5.4; TENSILE section V-D.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bench.lane_time import TimedTurnstile
from bench.paced import A6000, SEED, Network, open_network, slower_than_a6000
from bench.results import provenance, table, write
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tensile_db.worker.devices.cores import calibrate
from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.turn import Turn
from tensile_db.worker.mailbox import Mailbox
from tensile_db.worker.messages import JobId

#: Jobs, and memory over the sum of their eager peaks.
CASES = ((2, 0.45), (4, 0.28), (4, 0.25), (8, 0.2))
AMPLE_NBYTES = 64 * 2**30


def main() -> None:
    """Run the cases, write the results, and print them as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--jobs", default="2,4,8", help="run the cases with so many jobs only")
    parser.add_argument("--profile", action="store_true", help="print where each job's time went")
    options = parser.parse_args()
    counts = {int(count) for count in options.jobs.split(",")}
    network = open_network(options.network, batch_size=options.batch_size, image_size=options.image_size)
    bench = Bench(network, options.iterations, profile=options.profile)
    rows = [bench.case(count, share) for count, share in CASES if count in counts]
    document = provenance("bench.sharing") | {
        "workload": f"{options.network}, batch {options.batch_size}, {options.image_size} px, Adam",
        "iterations": options.iterations,
        "rows": rows,
    }
    path = write(f"sharing_{options.network}", document)
    head = ["jobs", "memory", "lanes", "state leaves", "moved ahead", "peak", "makespan", "processor"]
    head += ["switch ms", "PyTorch threads", "same bits"]
    print(table(head, ([row[key.replace(" ", "_")] for key in head] for row in rows)))
    print(f"written to {path}")


class Bench:
    """One network's cases."""

    def __init__(self, network: Network, iterations: int, *, profile: bool = False) -> None:
        self._network = network
        self._iterations = iterations
        self._profile = profile
        self._latencies_ns = self._measure()
        self._copies_cost = _copies_cost_bytes_per_s()
        #: Job, begin and end of each iteration of the last run, in s.
        self.spans: list[tuple[int, float, float]] = []
        self.link_bytes_per_s = int(
            A6000.d2h_bytes_per_s / slower_than_a6000(network.step.graph, self._latencies_ns)
        )
        self._alone = self.plans(1, AMPLE_NBYTES)
        self._eager_nbytes = self._alone[0].job_plan.prediction.vanilla_peak_nbytes

    def case(self, count: int, share: float) -> dict[str, Any]:
        """Return what came of so many jobs in that share of their eager peaks."""
        memory_nbytes = int(share * count * self._eager_nbytes)
        plans = self.plans(count, memory_nbytes)
        processor_s = [time.process_time()]
        before_s, _ = self._one_after_another(count)
        busy_s: list[float] = []
        processor_s.append(time.process_time())
        took_s, peak_nbytes, states = self.run(plans, memory_nbytes, self._iterations, busy_s)
        processor_s.append(time.process_time())
        threads_s = self._eager_threads(count)
        after_s, once = self._one_after_another(count)
        serial_s = (before_s + after_s) / 2
        lanes = len({plan.share.lane for plan in plans})
        return {
            "jobs": count,
            "memory": share,
            "lanes": lanes,
            "state_leaves": sum(
                plan.share.transit_nbytes > 0 or plan.share.resident_nbytes == 0 for plan in plans
            ),
            "moved_ahead": sum(plan.share.transit_nbytes > 0 for plan in plans),
            "shares": round(needed_nbytes(plan.share for plan in plans) / count / self._eager_nbytes, 4),
            "peak": round(peak_nbytes / count / self._eager_nbytes, 4),
            "makespan": round(took_s / serial_s, 4),
            "processor": round(
                (processor_s[2] - processor_s[1]) / max(1e-9, processor_s[1] - processor_s[0]), 4
            ),
            # From the end of a job's iteration to the beginning of the next one's, moves of state included.
            "switch_ms": None
            if lanes > 1
            else round(1e3 * (took_s - sum(busy_s)) / count / self._iterations, 2),
            "PyTorch_threads": round(threads_s / serial_s, 4),
            "serial_s": [round(before_s, 2), round(after_s, 2)],
            "same_bits": all(_same(state, once) for state in states),
        }

    def plans(self, count: int, memory_nbytes: int) -> tuple[SharedPlan, ...]:
        """Return plans and shares for so many jobs in so much memory."""
        spec = replace(
            A6000,
            name="cpu",
            memory_nbytes=memory_nbytes,
            concurrency=os.cpu_count() or 1,
            copies_cost_bytes_per_s=self._copies_cost,
            d2h_bytes_per_s=self.link_bytes_per_s,
            h2d_bytes_per_s=self.link_bytes_per_s,
        )
        graph = self._network.step.graph
        requests = [
            JobRequest(job_id=number, graph=graph, latencies_ns=self._latencies_ns) for number in range(count)
        ]
        return plan_shared(requests, spec)

    def _measure(self) -> tuple[int, ...]:
        guess = predict_latencies_ns(self._network.step.graph, A6000)
        vanilla = self._network.plan(guess, A6000, "vanilla", AMPLE_NBYTES)
        runs = self._network.run(vanilla, link_bytes_per_s=AMPLE_NBYTES, iterations=5, sample_latencies=True)
        sampled = [run.latencies_ns for run in runs if run.latencies_ns is not None]
        # What disturbs a run only makes it longer, and the first one touches memory for the first time.
        return tuple(min(times) for times in zip(*sampled, strict=True))

    def run(
        self,
        plans: tuple[SharedPlan, ...],
        memory_nbytes: int,
        iterations: int,
        busy_s: list[float] | None = None,
    ) -> tuple[float, int, list[dict[str, torch.Tensor]]]:
        """Run one job a plan; return how long it took, the device's peak, and the jobs' last states.

        busy_s: what each iteration took is added to it.
        """
        device = CpuDevice(
            memory_nbytes=memory_nbytes,
            d2h_bytes_per_s=self.link_bytes_per_s,
            h2d_bytes_per_s=self.link_bytes_per_s,
        )
        turnstile = TimedTurnstile(memory_nbytes=memory_nbytes)
        self.spans.clear()
        states: dict[int, dict[str, torch.Tensor]] = {}
        ready = threading.Barrier(len(plans) + 1)

        def job(number: int) -> None:
            states[number], took_s = self._train(device, turnstile, plans[number], number, iterations, ready)
            if busy_s is not None:
                busy_s.extend(took_s)

        try:
            took_s = _together([lambda number=number: job(number) for number in range(len(plans))], ready)
            if self._profile:
                print(f"{len(plans)} jobs, {iterations} iterations each: {took_s:.2f} s")
                for number, spent in turnstile.report().items():
                    print(f"  job {number}, lane {plans[number - 1].share.lane}: {spent}")
            return took_s, device.memory.peak_nbytes, [states[number] for number in sorted(states)]
        finally:
            device.close()

    def _train(
        self,
        device: CpuDevice,
        turnstile: TimedTurnstile,
        plan: SharedPlan,
        number: int,
        iterations: int,
        ready: threading.Barrier,
    ) -> tuple[dict[str, torch.Tensor], list[float]]:
        took_s: list[float] = []
        job, program = JobId(number + 1), plan.job_plan.program
        turnstile.come_in(job, priority=0)
        with JobMemory(
            device, job=job, budget_nbytes=plan.share.budget_nbytes, state=self._network.state, seed=SEED
        ) as memory:
            turn = Turn(turnstile, Mailbox(), memory, job=job)
            executor = Executor(self._network.step, memory)
            turn.change(plan.share)
            ready.wait()
            for iteration in range(1, iterations + 1):
                begin_s = time.perf_counter()
                assert turn.take(executor, program, left_ns=iterations - iteration)
                taken_s = time.perf_counter()
                result = executor.run_iteration(self._network.batch, iteration)
                took_s.append(result.elapsed_ns / 1e9)
                self.spans.append((number, taken_s, taken_s + took_s[-1]))
                turn.ran(result.elapsed_ns)
                turnstile.count(job, begin_s, taken_s, result)
            turn.end()
            state = executor.state()
            executor.close()
        turnstile.leave(job)
        return state, took_s

    def _one_after_another(self, count: int) -> tuple[float, dict[str, torch.Tensor]]:
        """Return how long as many jobs take one by one, beginning and end of each included, and the state."""
        took_s: float = 0.0
        state: dict[str, torch.Tensor] = {}
        for _ in range(count):
            alone_s, _, (state,) = self.run(self._alone, AMPLE_NBYTES, self._iterations)
            took_s += alone_s
        return took_s, state

    def _eager_threads(self, count: int) -> float:
        """Return how long as many jobs take that only share the process: no plan, no turns."""
        device = CpuDevice(memory_nbytes=AMPLE_NBYTES)
        ready = threading.Barrier(count + 1)

        def job(number: int) -> None:
            plan = self._alone[0].job_plan
            with JobMemory(
                device,
                job=JobId(number + 1),
                budget_nbytes=plan.budget_nbytes,
                state=self._network.state,
                seed=SEED,
            ) as memory:
                executor = Executor(self._network.step, memory)
                executor.adopt(plan.program)
                ready.wait()
                for iteration in range(1, self._iterations + 1):
                    executor.run_iteration(self._network.batch, iteration)
                executor.close()

        try:
            return _together([lambda number=number: job(number) for number in range(count)], ready)
        finally:
            device.close()


def _copies_cost_bytes_per_s() -> int:
    """Return what copies cost this machine's cores, as a worker measures it."""
    device = CpuDevice(memory_nbytes=AMPLE_NBYTES, rates=calibrate(os.cpu_count() or 1))
    try:
        return device.spec.copies_cost_bytes_per_s
    finally:
        device.close()


def _together(jobs: list[Callable[[], None]], ready: threading.Barrier) -> float:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    ready.wait()
    begin_s = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin_s


def _same(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in state.items())


if __name__ == "__main__":
    main()
