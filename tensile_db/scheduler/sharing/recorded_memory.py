"""What a recording of a program holds, in which order it computes, and where its tensors are to be.

Updates of small tensors are brought together (`gathered_updates.py`).  What is taken down holds memory in the
order in which the allocator hands it out, with holes in it (`growing_range.py`).  A device that can steer its
allocator has tensors come where they are wanted (`addresses.py`), which takes less; that is looked for where
it has to.

Source: ours.
"""

from dataclasses import dataclass, replace
from itertools import chain

from tensile_db.graph import StepGraph
from tensile_db.scheduler.program import Program
from tensile_db.scheduler.sharing import gathered_updates
from tensile_db.scheduler.sharing.addresses import best_addresses, end_of, lifetimes
from tensile_db.scheduler.sharing.gathered_updates import Gathered, gathered
from tensile_db.scheduler.sharing.growing_range import asked_by_instructions, in_pages, ranges_nbytes

#: cuBLAS keeps 32 MiB for a recording's stream; the rest, and a part of the whole, is for what kernels ask
#: for in another order than `growing_range.py` has it.
_LIBRARIES_NBYTES = 52 * 2**20
_SLACK_PART = 64
#: What stands in for an update's changing numbers needs as much again as it updates, but no more than this:
#: larger tensors are updated in parts.  For joined ones it needs twice as much as these update.
_BESIDE_NBYTES = 32 * 2**20
_BESIDE_JOINED = 2
_UPDATES_WITH_NUMBERS = "aten.addcdiv"


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredRange:
    """Where large tensors are to be."""

    #: In the order in which they are asked for.
    addresses: tuple[int, ...]
    #: Where the last one ends.
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMemory:
    """What a recording is going to hold beside the tensors that begin on the device."""

    nbytes: int
    #: The program as it is taken down.
    gathered: Gathered
    #: None: tensors are left where the allocator puts them.
    steered: SteeredRange | None


def recorded_memory(
    graph: StepGraph, program: Program, *, steers: bool, room_nbytes: int = 0
) -> RecordedMemory:
    """Return what a recording of the program is going to hold.

    graph: the program's; steers: the device's.
    room_nbytes: where so much is enough, tensors are left where the allocator puts them.
    Takes time in proportion to the instructions times the holes, which are few, and to find places as
    `best_addresses` does.
    """
    taken_down = gathered(graph, program)
    asked = list(asked_by_instructions(graph, taken_down.program))
    small_nbytes, large_nbytes = ranges_nbytes(chain.from_iterable(asked))
    beyond_nbytes = fixed_nbytes(graph) + (small_nbytes + large_nbytes) // _SLACK_PART
    unsteered = RecordedMemory(
        nbytes=small_nbytes + large_nbytes + beyond_nbytes, gathered=taken_down, steered=None
    )
    if not steers or unsteered.nbytes <= room_nbytes:
        return unsteered
    found = lifetimes(asked)
    addresses = best_addresses(found)
    if addresses is None:
        return unsteered
    used_nbytes = end_of(found, addresses)
    nbytes = small_nbytes + in_pages(used_nbytes + beyond_nbytes)
    if nbytes >= unsteered.nbytes:
        return unsteered
    return replace(unsteered, nbytes=nbytes, steered=SteeredRange(addresses=addresses, nbytes=used_nbytes))


def fixed_nbytes(graph: StepGraph) -> int:
    """Return the part of a recording's bytes that no plan changes: libraries' and what is beside updates."""
    updates = [op for op in graph.ops if op.target.startswith(_UPDATES_WITH_NUMBERS)]
    sizes = [graph.tensors[tensor].nbytes for op in updates for tensor in op.writes]
    alone_nbytes = min(max(sizes, default=0), _BESIDE_NBYTES)
    together_nbytes = _BESIDE_JOINED * min(sum(sizes), gathered_updates.TOGETHER_NBYTES)
    return max(alone_nbytes, together_nbytes) + _LIBRARIES_NBYTES
