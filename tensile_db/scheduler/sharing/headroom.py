"""More memory than a plan needs, for a job whose iterations are taken down and replayed.

What is taken down holds memory in the order in which the allocator hands it out, with holes in it
(`growing_range.py`), and tensors that its plan moves keep their places.  A job alone in its lane gets that
much beyond its plan's peak, of what no share has.  Of jobs that take turns each holds its lane's memory only
while its turn lasts; so one whose state stays on the device gets room for a whole iteration of its own, where
there is so much that no share has.

Source: ours.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tensile_db.graph import Phase, StepGraph
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.program import Program
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing.growing_range import range_nbytes
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan

#: Recordings on a device at a time.  Each has streams of its own: PyTorch has 32 of a kind and then begins
#: anew, and a device has three already.
MOST_RECORDINGS = 8

#: cuBLAS keeps 32 MiB for a recording's stream; the rest, and a part of the whole, is for what kernels ask
#: for in another order than `growing_range.py` has it.
_LIBRARIES_NBYTES = 52 * 2**20
_SLACK_PART = 64
#: What stands in for an update's changing numbers needs as much again as it updates, but no more than this:
#: larger tensors are updated in parts.
_BESIDE_NBYTES = 32 * 2**20
_UPDATES_WITH_NUMBERS = "aten.addcdiv"


def with_headroom(
    plans: Sequence[SharedPlan], jobs: Sequence[JobRequest], device: DeviceSpec
) -> tuple[SharedPlan, ...]:
    """Return the plans with larger shares, which together fit the device as before; jobs: in their order."""
    free_nbytes = device.memory_nbytes - needed_nbytes(plan.share for plan in plans)
    in_lane = Counter(plan.share.lane for plan in plans)
    shares = [plan.share for plan in plans]
    # Jobs alone in their lanes first: they need least.
    trained = [place for place in range(len(plans)) if is_taken_down(jobs[place])]
    given = 0
    for place in sorted(trained, key=lambda place: in_lane[shares[place].lane] > 1):
        if given == MOST_RECORDINGS:
            break
        job, share, program = jobs[place], shares[place], plans[place].job_plan.program
        graph = planned_graph(job.graph, plans[place].job_plan.plan)
        most_nbytes = free_nbytes
        if job.memory_limit_nbytes is not None:
            most_nbytes = max(0, min(free_nbytes, job.memory_limit_nbytes - share.budget_nbytes))
        if in_lane[share.lane] == 1:
            # With less than that it may have enough, for what libraries take is estimated.
            wanted_nbytes = max(0, held_nbytes(graph, program) - share.budget_nbytes)
            extra_nbytes = min(wanted_nbytes, most_nbytes)
            shares[place] = replace(share, ephemeral_nbytes=share.ephemeral_nbytes + extra_nbytes)
            free_nbytes -= extra_nbytes
            if extra_nbytes == wanted_nbytes:
                given += 1
        elif _stays(share, program):
            whole_nbytes = recorded_nbytes(graph, program)
            # With less it would be given up at each turn's end.
            if whole_nbytes <= most_nbytes:
                shares[place] = replace(share, recorded_nbytes=whole_nbytes)
                free_nbytes -= whole_nbytes
                given += 1
    return tuple(replace(plan, share=share) for plan, share in zip(plans, shares, strict=True))


def recorded_nbytes(graph: StepGraph, program: Program) -> int:
    """Return what a recording of the program is going to hold beside the tensors that begin on the device.

    graph: the program's.
    """
    in_range_nbytes = range_nbytes(graph, program)
    return in_range_nbytes + in_range_nbytes // _SLACK_PART + fixed_nbytes(graph)


def fixed_nbytes(graph: StepGraph) -> int:
    """Return what of that has nothing to do with the plan."""
    updates = [op for op in graph.ops if op.target.startswith(_UPDATES_WITH_NUMBERS)]
    updated_nbytes = max((graph.tensors[each].nbytes for op in updates for each in op.writes), default=0)
    return min(updated_nbytes, _BESIDE_NBYTES) + _LIBRARIES_NBYTES


def held_nbytes(graph: StepGraph, program: Program) -> int:
    """Return what a job holds, its state included, while a recording of the program is replayed."""
    return program.resident_nbytes + recorded_nbytes(graph, program)


def is_recordable(share: Share, graph: StepGraph, program: Program) -> bool:
    """Whether a share has room for a recording of the program, between turns too if others have some."""
    if share.recorded_nbytes:
        return share.recorded_nbytes >= recorded_nbytes(graph, program)
    return share.budget_nbytes >= held_nbytes(graph, program)


def is_taken_down(job: JobRequest) -> bool:
    """Whether the job trains: nothing else repeats itself often enough."""
    return job.unused_ns is None and any(op.phase is Phase.BACKWARD for op in job.graph.ops)


def _stays(share: Share, program: Program) -> bool:
    """Whether the job's tensors are where an iteration begins also after the others' turns."""
    return not share.transit_nbytes and 0 < share.resident_nbytes == program.resident_nbytes
