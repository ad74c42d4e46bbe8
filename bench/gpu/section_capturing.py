"""Captures what later sections train, in processes beside the tests, where nothing is timed.

A step for a GPU can only be captured where there is one: each takes 2 to 10 s of the processor alone.
"""

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.gpu import section_formats
from bench.gpu.machine import Machine, processes_beside_tests
from bench.gpu.networks import find, formats_case, frontier_cases, replay_cases, shared_case
from bench.gpu.results import Results
from bench.gpu.section_single import PRECISION
from bench.gpu.subjects import OPTIMIZER, open_subject
from tensile_db.capture.precision import Precision

#: A capture that is begun and not ended is lost.
_NEEDS_S = 12
_NO_TIME = "no time"


class _Case(NamedTuple):
    """What is captured; the fields are `open_subject`'s."""

    network: str
    size: int
    precision: Precision = Precision.FLOAT32
    memory_format: str = "contiguous"
    optimizer: str = OPTIMIZER


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Capture every case, those of the first sections first."""
    assert machine.captures is not None, "the section has no folder to keep captured steps in"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=processes_beside_tests(), mp_context=spawn) as pool:
        until_s = time.time() + results.left_s
        parts = {
            case: pool.submit(_in_a_process, machine.name, machine.captures, case, until_s)
            for case in dict.fromkeys(_cases(quick=quick))
        }
        for case, part in parts.items():
            name = f"{case.network} {case.size} {case.optimizer} {case.precision} {case.memory_format}"
            found = results.attempt(name, 0, part.result)
            if found == _NO_TIME:
                results.skip(name)
            elif found is not None:
                results.add({"captured": name, "seconds": found})


def _cases(*, quick: bool) -> Iterator[_Case]:
    for workload, size, optimizer in replay_cases(quick=quick):
        yield _Case(workload.name, size, optimizer=optimizer)
    for workload, size in frontier_cases(quick=quick):
        yield _Case(workload.name, size, PRECISION)
    workload, size = shared_case(quick=quick)
    yield _Case(workload.name, size)
    workload, size = formats_case(quick=quick)
    for precision, memory_format in section_formats.ways(quick=quick):
        yield _Case(workload.name, size, precision, memory_format)


def _in_a_process(device: str, folder: Path, case: _Case, until_s: float) -> float | str:
    """Capture a case; return the seconds that it took, or _NO_TIME where there was too little.

    until_s: of the clock, which processes have in common.
    """
    if time.time() + _NEEDS_S > until_s:
        return _NO_TIME
    begin_s = time.monotonic()
    open_subject(
        find(case.network),
        case.size,
        Machine(device, folder),
        case.precision,
        case.memory_format,
        case.optimizer,
    )
    return round(time.monotonic() - begin_s, 1)
