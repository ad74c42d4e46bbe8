"""One process of processes.py: python -m bench.gpu.process_job DEVICE NETWORK BATCH ITERATIONS NAME GO."""

import json
import sys
import time
from pathlib import Path

from bench.gpu.machine import Machine
from bench.gpu.networks import find
from bench.gpu.subjects import Eager, Subject, draw_batch, network_builder


def main() -> None:
    """Get ready, wait for the word to go, train, and write down when and how much."""
    name, network, size, iterations, own, go = sys.argv[1:]
    machine, workload = Machine(name), find(network)
    machine.prepare(deterministic=False)
    build = network_builder(workload, int(size))
    subject = Subject(
        name=network,
        size=int(size),
        build=build,
        batch=draw_batch(workload, int(size), build()),
        step=None,
        state={},
        capturing_s=0.0,
    )
    training = Eager(subject, machine)
    for _ in range(2):
        training.iterate()
    machine.synchronize()
    machine.begin_peak()
    Path(f"{own}.ready").touch()
    while not Path(go).exists():
        time.sleep(0.002)
    for _ in range(int(iterations)):
        training.iterate().item()
    ended_s = time.monotonic()
    Path(f"{own}.json").write_text(json.dumps({"ended_s": ended_s, **machine.peaks()}))


if __name__ == "__main__":
    main()
