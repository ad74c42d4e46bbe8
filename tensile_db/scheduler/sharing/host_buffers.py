"""What an iteration needs of the host: a buffer for each tensor that is swapped out, used again by the next.

Source: ours; worker/execution/swapper.py for when the host's copy of a tensor is kept.
"""

from collections import Counter
from collections.abc import Collection
from typing import assert_never

from tensile_db.graph import StepGraph, TensorId
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Program


def host_buffers(graph: StepGraph, program: Program, *, had: Collection[TensorId]) -> list[int]:
    """Return sizes of buffers, in bytes, ascending: of each size as many as are in use at once at most.

    had: the persistent tensors of which the host has a copy when the iteration begins, and so a buffer.
    A persistent tensor keeps its buffer, also when what is in it is outdated.
    """
    persistent = set(had)
    # Others of which the host has a copy that is up to date.
    valid: set[TensorId] = set()
    used, most = Counter[int](), Counter[int]()

    def take(tensor: TensorId) -> None:
        nbytes = graph.tensors[tensor].nbytes
        used[nbytes] += 1
        most[nbytes] = max(most[nbytes], used[nbytes])

    def give(tensor: TensorId) -> None:
        valid.discard(tensor)
        used[graph.tensors[tensor].nbytes] -= 1

    for instruction in program.instructions:
        match instruction:
            case CopyOut(tensor=tensor):
                have = persistent if graph.tensors[tensor].persistent else valid
                if tensor not in have:
                    have.add(tensor)
                    take(tensor)
            case Free(tensor=tensor) if tensor in valid:
                give(tensor)
            case Compute(op=op, recompute=again):
                for tensor in valid.intersection(graph.ops[op].writes):
                    # What a second run makes anew is what the host has; what an op changes, it reads.
                    if not again or tensor in graph.ops[op].reads:
                        give(tensor)
            case CopyIn() | Await() | Free():
                pass
            case _:
                assert_never(instruction)
    return sorted(most.elements())
