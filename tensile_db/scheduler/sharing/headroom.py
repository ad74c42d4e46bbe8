"""More memory than a plan needs, for a job whose iterations are taken down and replayed.

What is taken down holds memory in the pieces that the allocator makes, and tensors that its plan moves
keep their places.  A job alone in its lane gets that much beyond its plan's peak, of what no share has; jobs
that take turns get nothing, for each holds its lane's memory only while its turn lasts.

Source: ours.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tensile_db.graph import StepGraph
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.program import CopyOut, Program
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan

#: PyTorch's allocator asks the driver for 20 MiB, or multiples of 2 MiB, at a time; sizes that do not follow
#: each other well leave gaps besides.  What stands in for an update's changing numbers takes up to 32 MiB.
_SEGMENTS_NBYTES = (64 + 32) * 2**20
_GAPS_PART = 8


def with_headroom(
    plans: Sequence[SharedPlan], jobs: Sequence[JobRequest], device: DeviceSpec
) -> tuple[SharedPlan, ...]:
    """Return the plans with larger shares, which together fit the device as before; jobs: in their order."""
    free_nbytes = device.memory_nbytes - needed_nbytes(plan.share for plan in plans)
    in_lane = Counter(plan.share.lane for plan in plans)
    made = []
    for plan, job in zip(plans, jobs, strict=True):
        share = plan.share
        extra_nbytes = 0
        if in_lane[share.lane] == 1 and job.unused_ns is None:
            made_by = plan.job_plan
            kept_nbytes = places_kept_nbytes(planned_graph(job.graph, made_by.plan), made_by.program)
            gaps_nbytes = _SEGMENTS_NBYTES + share.ephemeral_nbytes // _GAPS_PART
            extra_nbytes = max(0, min(kept_nbytes + gaps_nbytes, free_nbytes))
        free_nbytes -= extra_nbytes
        larger = replace(share, ephemeral_nbytes=share.ephemeral_nbytes + extra_nbytes)
        made.append(replace(plan, share=larger))
    return tuple(made)


def places_kept_nbytes(graph: StepGraph, program: Program) -> int:
    """Return what the tensors hold that begin an iteration on the device and are swapped out within it.

    graph: the program's.
    """
    begin_away = set(program.start_on_host)
    swapped = {each.tensor for each in program.instructions if isinstance(each, CopyOut)} - begin_away
    return sum(graph.tensors[tensor].nbytes for tensor in swapped if graph.tensors[tensor].persistent)
