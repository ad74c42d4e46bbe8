"""A plan made flat: the instructions that the executor walks, in order.

Instructions mean what they say at the place where they stand.  Copies are started, not awaited:
`CopyOut` and `CopyIn` hand work to a channel, which serves its copies one at a time in this order
and starts each no earlier than `delta_ns` after the end of the op before: what is awaited in
between is part of the delay.  `Await` blocks until the tensor's copy in flight has ended; a tensor
swapped out leaves the device only there.
"""

from dataclasses import dataclass

from tensile_db.graph import OpId, TensorId


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Run an op.  A recomputation leaves persistent tensors untouched."""

    op: OpId
    recompute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOut:
    """Start copying a tensor to the host; free, and no time, where the host's copy is still valid."""

    tensor: TensorId
    delta_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyIn:
    """Allocate a tensor on the device and start copying it from the host, whose copy stays valid."""

    tensor: TensorId
    delta_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """Wait for the tensor's copy in flight; after a CopyOut, free the device's side."""

    tensor: TensorId


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Free a tensor that is not persistent, and with it the host's copy if there is one."""

    tensor: TensorId


Instruction = Compute | CopyOut | CopyIn | Await | Free


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One iteration, verified; it may be run again and again.

    Persistent tensors in `start_on_host` begin every iteration on the host, the others on the device,
    and the end of the iteration leaves them so.
    """

    instructions: tuple[Instruction, ...]
    start_on_host: tuple[TensorId, ...]
    #: The most that the program can hold on the device, whatever the real latencies are.
    guaranteed_peak_nbytes: int
    #: What it holds on the device between two iterations.
    resident_nbytes: int
