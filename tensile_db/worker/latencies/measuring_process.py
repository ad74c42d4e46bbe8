"""Measures probes and learns from them, as a process of its own.

Apart from the worker: capturing and training would hold up its jobs' threads, a job that comes ends the
process at once, and kernels have been seen to crash over a probe (oneDNN's backward of 1 x 1 convolutions
with stride 2 over 10 channels), which costs that probe only.

An order comes as a pickle on standard input, answers go as pickles to standard output, between a parent and
its own child (measuring.py).  The child ends when its input does, and so with its parent.
"""

import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tensile_db.capture.networks.probes import Limits, draw_probe
from tensile_db.errors import TensileError
from tensile_db.latency.samples import LatencySample
from tensile_db.latency.training import Learned, learn
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.devices.opening import open_device
from tensile_db.worker.latencies.load import load_levels
from tensile_db.worker.latencies.probing import measure_probe

log = logging.getLogger(__name__)

#: Of the device's memory, the most that one of a probe's tensors may take.
_TENSOR_SHARE = 64


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Measure probes, from number `first` on, until told to stop."""

    config: WorkerConfig
    first: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Learn:
    """Learn models from samples."""

    samples: tuple[LatencySample, ...]
    device: DeviceSpec
    seed: int


Order = Measure | Learn


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A probe is being measured from now on."""

    probe: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A probe's samples; none where it could not be run."""

    probe: int
    samples: tuple[LatencySample, ...]


@dataclass(frozen=True, kw_only=True)
class KindDone:
    """So many kinds are learned."""

    done: int
    of: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Everything that was learned, by kind."""

    learned: dict[str, Learned]


Answer = Begun | Measured | KindDone | Finished


def main() -> None:
    """Carry out one order."""
    # Ctrl-C in a terminal reaches every process of it; this one ends with its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING)
    # Whatever a library prints must not stand among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order: Order = pickle.load(sys.stdin.buffer)  # noqa: S301  # written by the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def say(answer: Answer) -> None:
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()

    match order:
        case Measure():
            _measure(order, say)
        case Learn():
            _learn(order, say)


def _measure(order: Measure, say: Callable[[Answer], None]) -> None:
    device = open_device(order.config)
    limits = Limits(tensor_nbytes=min(Limits().tensor_nbytes, device.spec.memory_nbytes // _TENSOR_SHARE))
    number = order.first
    while True:
        say(Begun(probe=number))
        samples: list[LatencySample] = []
        try:
            probe = draw_probe(number, seed=order.seed, limits=limits)
            levels = load_levels(number, device.spec)
            samples = measure_probe(device, probe, number=number, load_levels=levels)
        except TensileError as error:
            log.warning("probe %s is left out: %s", number, error.message)
        say(Measured(probe=number, samples=tuple(samples)))
        number += 1


def _learn(order: Learn, say: Callable[[Answer], None]) -> None:
    # Sums in one order, so that equal samples give equal models.
    torch.set_num_threads(1)
    learned = learn(
        order.samples,
        order.device,
        seed=order.seed,
        on_kind=lambda done, of: say(KindDone(done=done, of=of)),
    )
    say(Finished(learned=learned))


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    # Kernels under way would keep the interpreter from ending.
    os._exit(0)
