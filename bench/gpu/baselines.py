"""What one would use in PyTorch today to hold less memory, each around the same eager training.

    checkpoint      torch.utils.checkpoint.checkpoint(use_reentrant=False) around every repeated block
    save_on_cpu     torch.autograd.graph.save_on_cpu(pin_memory=True) around the forward pass
    compile(b)      torch.compile with torch._functorch.config.activation_memory_budget = b

Batch norms in checkpointed blocks update their statistics twice (pytorch#96136), and a budget below 1 may
give wrong gradients with dropout (pytorch#190758): peaks and times are compared, not values.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bench.gpu.machine import Machine
from bench.gpu.results import Results
from bench.gpu.subjects import Eager, Subject
from tensile_db.capture.precision import Precision


def eager(subject: Subject, machine: Machine) -> Eager:
    """Return plain training."""
    return Eager(subject, machine)


class NotForThisNetwork(Exception):
    """The network has nothing that a baseline could work with."""


def checkpointed(subject: Subject, machine: Machine) -> Eager:
    """Return training that runs every repeated block again in the backward pass.

    Raises NotForThisNetwork where there are no such blocks.
    """
    training = Eager(subject, machine)
    blocks = list(repeated_blocks(training.model))
    if not blocks:
        raise NotForThisNetwork("the network has no repeated blocks")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    return training


def saved_on_cpu(subject: Subject, machine: Machine) -> Eager:
    """Return training that keeps on the host what autograd saves."""
    training = Eager(subject, machine)
    whole = training.model

    class OnCpu(nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.save_on_cpu(pin_memory=machine.is_gpu):
                output: torch.Tensor = whole(features)
            return output

    training.step_with = OnCpu()
    return training


def compiled(subject: Subject, machine: Machine) -> Eager:
    """Return training with a compiled network, which is compiled as the first iteration runs."""
    training = Eager(subject, machine)
    # In a dry run without the code generator, which takes a C compiler a minute.
    backend = "inductor" if machine.is_gpu else "aot_eager"
    training.step_with = torch.compile(training.model, backend=backend)  # type: ignore[assignment]
    return training


def compiling(budget: float) -> AbstractContextManager[Any]:
    """Set the compiler's budget of activations meanwhile, 1 for all: it is read at compilation."""
    import torch._functorch.config as config

    return config.patch(activation_memory_budget=budget)  # type: ignore[no-any-return]


def repeated_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Return the members of lists of at least two blocks, outermost lists first and none within another.

    A block has parameters and members of its own: a lone convolution is not worth it.
    """
    for module in model.children():
        is_list = isinstance(module, nn.Sequential | nn.ModuleList)
        members = [each for each in module.children() if any(True for _ in each.children())]
        if is_list and len(members) >= 2:
            yield from members
        else:
            yield from repeated_blocks(module)


#: (name, maker); compile's are apart, for their time.
PLAIN: tuple[tuple[str, Callable[[Subject, Machine], Eager]], ...] = (
    ("eager", eager),
    ("checkpoint", checkpointed),
    ("save_on_cpu", saved_on_cpu),
)


def measure(make: Callable[[], Eager], machine: Machine, *, runs: int, warm_up: int = 3) -> dict[str, Any]:
    """Make an eager training; return its times and peaks, and the loss it comes to.

    Peaks are without what is on the device already, as those of plans are (`Subject.run`).
    """
    machine.clean()
    machine.let_libraries_allocate()
    before_nbytes, reserved_before_nbytes = machine.allocated_nbytes(), machine.reserved_nbytes()
    training = make()
    losses: list[torch.Tensor] = []

    def iterate() -> None:
        losses.append(training.iterate())

    for _ in range(warm_up):
        iterate()
    machine.synchronize()
    machine.begin_peak()
    times_ns = machine.times_ns(iterate, warm_up=0, runs=runs)
    pipelined_ns = machine.pipelined_ns(iterate, runs=runs)
    peaks = machine.peaks()
    return {
        "time_ns": sorted(times_ns)[len(times_ns) // 2],
        "pipelined_ns": pipelined_ns,
        "max_allocated_nbytes": max(0, peaks["max_allocated_nbytes"] - before_nbytes),
        "max_reserved_nbytes": max(0, peaks["max_reserved_nbytes"] - reserved_before_nbytes),
        "loss": losses[-1].item(),
    }


def add(
    subject: Subject,
    way: str,
    make: Callable[[Subject, Machine], Eager],
    machine: Machine,
    results: Results,
    *,
    precision: Precision,
    runs: int,
    needs_s: float,
) -> dict[str, Any] | None:
    """Add an entry of what is measured of a baseline, or why the network has none; None if not reached."""

    def measured() -> dict[str, Any]:
        try:
            with machine.in_precision(precision):
                return measure(lambda: make(subject, machine), machine, runs=runs)
        except NotForThisNetwork as reason:
            return {"skipped": str(reason)}

    found: dict[str, Any] | None = results.attempt(f"{subject.name} {subject.size}: {way}", needs_s, measured)
    machine.clean()
    if found is not None:
        results.add({"network": subject.name, "batch": subject.size, "way": way, **found})
    return found
