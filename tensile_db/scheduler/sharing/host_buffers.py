"""What an iteration needs of the host: a buffer for each tensor that is swapped out, used again by the next.

Source: ours; worker/execution/swapper.py for when the host's copy of a tensor is kept.
"""

from collections import Counter
from collections.abc import Collection

from tensile_db.graph import StepGraph, TensorId
from tensile_db.scheduler.program import Compute, CopyOut, Free, Program


def host_buffers(graph: StepGraph, program: Program, *, had: Collection[TensorId]) -> list[int]:
    """Return the sizes of the buffers that are in use at once at most, by size, in bytes, ascending.

    had: the persistent tensors of which the host has a copy when the iteration begins.  They need no more,
    and as any persistent tensor they keep their buffer when its contents are outdated.
    """
    valid, kept = set(had), set(had)
    used, most = Counter[int](), Counter[int]()

    def take(tensor: TensorId) -> None:
        valid.add(tensor)
        if tensor not in kept:
            nbytes = graph.tensors[tensor].nbytes
            used[nbytes] += 1
            most[nbytes] = max(most[nbytes], used[nbytes])
            if graph.tensors[tensor].persistent:
                kept.add(tensor)

    def give(tensor: TensorId) -> None:
        valid.discard(tensor)
        if tensor not in kept:
            used[graph.tensors[tensor].nbytes] -= 1

    for instruction in program.instructions:
        match instruction:
            case CopyOut(tensor=tensor) if tensor not in valid:
                take(tensor)
            case Free(tensor=tensor) if tensor in valid:
                give(tensor)
            case Compute(op=op, recompute=again):
                # What a second run makes anew is what the host has; state it leaves alone.
                reads = graph.ops[op].reads
                for tensor in valid.intersection(graph.ops[op].writes):
                    if not again or (tensor in reads and not graph.tensors[tensor].persistent):
                        give(tensor)
            case _:
                pass
    return sorted(most.elements())
