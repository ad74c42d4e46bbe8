"""torch.compile with budgets for what it keeps for the backward pass, which needs a C compiler and Triton.

It takes up to a minute to compile a network, and keeps what it has made on the disk.  So everything is
compiled once beside the tests, where nothing is timed, in a section of its own; what is measured later finds
it there.  Which of a kernel's variants is fastest has been tried on a busy GPU then.
"""

import time
from collections.abc import Iterator
from functools import partial

from bench.gpu import baselines
from bench.gpu.machine import Machine
from bench.gpu.networks import compiled_cases
from bench.gpu.results import Results
from bench.gpu.section_single import PRECISION
from bench.gpu.subjects import Eager, Subject, only_eager

#: Of what is kept.
BUDGETS = (1.0, 0.5)
#: For what is compiled already.
_NEEDS_S = 8
#: What is begun and not ended is lost.
_COMPILING_NEEDS_S = 30


def run_ahead(machine: Machine, results: Results, *, quick: bool) -> None:
    """Compile every network for every budget, and run each once."""
    machine.prepare(deterministic=False)
    for subject, budget in _cases(results, quick=quick):
        name = f"{subject.name} {subject.size}: compile({budget})"
        needs_s = 0 if quick else _COMPILING_NEEDS_S
        seconds = results.attempt(name, needs_s, partial(_first_s, subject, budget, machine))
        machine.clean()
        if seconds is not None:
            results.add(
                {"network": subject.name, "batch": subject.size, "budget": budget, "seconds": seconds}
            )


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Measure every network with every budget."""
    machine.prepare(deterministic=False)
    runs = 3 if quick else 10
    for subject, budget in _cases(results, quick=quick):
        with baselines.compiling(budget):
            baselines.add(
                subject,
                f"compile({budget})",
                _compiled,
                machine,
                results,
                precision=PRECISION,
                runs=runs,
                needs_s=_NEEDS_S,
            )


def _cases(results: Results, *, quick: bool) -> Iterator[tuple[Subject, float]]:
    """Yield every network with every budget, first all networks with the first."""
    made = (
        results.attempt(f"{workload.name} {size}: batch", 0, partial(only_eager, workload, size))
        for workload, size in compiled_cases(quick=quick)
    )
    subjects = [subject for subject in made if subject is not None]
    for budget in BUDGETS:
        for subject in subjects:
            yield subject, budget


def _compiled(subject: Subject, machine: Machine) -> Eager:
    import torch

    torch.compiler.reset()
    return baselines.compiled(subject, machine)


def _first_s(subject: Subject, budget: float, machine: Machine) -> float:
    """Return how long the first iteration takes."""
    begin_s = time.monotonic()
    with baselines.compiling(budget), machine.in_precision(PRECISION):
        _compiled(subject, machine).iterate()
        machine.synchronize()
    return round(time.monotonic() - begin_s, 1)
