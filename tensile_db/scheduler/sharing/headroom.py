"""More memory than a plan needs, for a job whose iterations are taken down and replayed.

What is taken down holds memory in the pieces that the allocator makes, and tensors that its plan moves
keep their places.  A job alone in its lane gets that much beyond its plan's peak, of what no share has.  Of
jobs that take turns each holds its lane's memory only while its turn lasts; so one whose state stays on the
device gets room for a whole iteration of its own, where there is so much that no share has.

Source: ours.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tensile_db.graph import Phase, StepGraph
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.program import CopyOut, Program
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan

#: Recordings on a device at a time.  Each has streams of its own: PyTorch has 32 of a kind and then begins
#: anew, and a device has three already.
MOST_RECORDINGS = 8

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
    shares = [plan.share for plan in plans]
    # Jobs alone in their lanes first: they need least.
    trained = [place for place in range(len(plans)) if _is_taken_down(jobs[place])]
    given = 0
    for place in sorted(trained, key=lambda place: in_lane[shares[place].lane] > 1):
        plan, job, share = plans[place], jobs[place], shares[place]
        beyond_nbytes = _beyond_plan_nbytes(plan, job)
        most_nbytes = free_nbytes
        if job.memory_limit_nbytes is not None:
            most_nbytes = max(0, min(free_nbytes, job.memory_limit_nbytes - share.budget_nbytes))
        if given == MOST_RECORDINGS:
            break
        if in_lane[share.lane] == 1:
            extra_nbytes = max(0, min(beyond_nbytes, most_nbytes))
            shares[place] = replace(share, ephemeral_nbytes=share.ephemeral_nbytes + extra_nbytes)
            free_nbytes -= extra_nbytes
            given += 1
        elif _stays(share, plan.job_plan.program):
            # With less it would be given up at each turn's end.
            whole_nbytes = share.ephemeral_nbytes + beyond_nbytes
            if whole_nbytes <= most_nbytes:
                shares[place] = replace(share, recorded_nbytes=whole_nbytes)
                free_nbytes -= whole_nbytes
                given += 1
    return tuple(replace(plan, share=share) for plan, share in zip(plans, shares, strict=True))


def places_kept_nbytes(graph: StepGraph, program: Program) -> int:
    """Return what the tensors hold that begin an iteration on the device and are swapped out within it.

    graph: the program's.
    """
    begin_away = set(program.start_on_host)
    swapped = {each.tensor for each in program.instructions if isinstance(each, CopyOut)} - begin_away
    return sum(graph.tensors[tensor].nbytes for tensor in swapped if graph.tensors[tensor].persistent)


def _beyond_plan_nbytes(plan: SharedPlan, job: JobRequest) -> int:
    """Return what a recording may need beyond what its plan does."""
    made_by = plan.job_plan
    kept_nbytes = places_kept_nbytes(planned_graph(job.graph, made_by.plan), made_by.program)
    return kept_nbytes + _SEGMENTS_NBYTES + plan.share.ephemeral_nbytes // _GAPS_PART


def _is_taken_down(job: JobRequest) -> bool:
    """Whether the job trains: nothing else repeats itself often enough."""
    return job.unused_ns is None and any(op.phase is Phase.BACKWARD for op in job.graph.ops)


def _stays(share: Share, program: Program) -> bool:
    """Whether the job's tensors are where an iteration begins also after the others' turns."""
    return not share.transit_nbytes and 0 < share.resident_nbytes == program.resident_nbytes
