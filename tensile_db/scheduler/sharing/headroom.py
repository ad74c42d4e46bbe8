"""More memory than a plan needs, for a job whose iterations are taken down and replayed.

What is taken down holds memory with holes in it (`recorded_memory.py`), and tensors that its plan moves keep
their places.  A job alone in its lane gets that much beyond its plan's peak, of what no share has.  Of jobs
that take turns each holds its lane's memory only while its turn lasts; so one whose state stays on the device
gets room for a whole recording beside its plan's peak, where no share has that.  Where it is left after them
all, a job alone gets as much instead: then what it runs op by op, a validation above all, need not displace
the recording.

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
from tensile_db.scheduler.sharing.recorded_memory import recorded_memory
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan

#: Recordings on a device at a time.  Each has three streams of its own: PyTorch has 32 of a kind and then
#: begins anew, and seven are the device's, its workspace meter's, and what was tried as it was opened.
MOST_RECORDINGS = 8


def with_headroom(
    plans: Sequence[SharedPlan], jobs: Sequence[JobRequest], device: DeviceSpec
) -> tuple[SharedPlan, ...]:
    """Return the plans with larger shares, which together fit the device as before; jobs: in their order."""
    free_nbytes = device.memory_nbytes - needed_nbytes(plan.share for plan in plans)
    in_lane = Counter(plan.share.lane for plan in plans)
    shares = [plan.share for plan in plans]
    # Jobs alone in their lanes first: they need least.  Of these and of the others trainings, which go on for
    # longer than what goes forward once.
    taken_down = [place for place in range(len(plans)) if is_taken_down(jobs[place])]
    # Of those alone with room to replay, by place: what a recording holds beside the state.
    recordings_nbytes: dict[int, int] = {}
    given = 0
    for place in sorted(taken_down, key=lambda place: (in_lane[shares[place].lane] > 1, jobs[place].repeats)):
        if given == MOST_RECORDINGS:
            break
        share, program = shares[place], plans[place].job_plan.program
        graph = planned_graph(jobs[place].graph, plans[place].job_plan.plan)
        most_nbytes = _most_nbytes(jobs[place], share, free_nbytes)
        if in_lane[share.lane] == 1:
            # With less than that it may have enough, for what libraries take is estimated.
            held = held_nbytes(graph, program, device, share.budget_nbytes + most_nbytes)
            wanted_nbytes = max(0, held - share.budget_nbytes)
            extra_nbytes = min(wanted_nbytes, most_nbytes)
            shares[place] = replace(share, ephemeral_nbytes=share.ephemeral_nbytes + extra_nbytes)
            free_nbytes -= extra_nbytes
            if extra_nbytes == wanted_nbytes:
                given += 1
                recordings_nbytes[place] = held - program.resident_nbytes
        elif _stays(share, program):
            whole_nbytes = recorded_memory(
                graph, program, steers=device.steers, room_nbytes=most_nbytes
            ).nbytes
            # With less it would be given up at each turn's end.
            if whole_nbytes <= most_nbytes:
                shares[place] = replace(share, recorded_nbytes=whole_nbytes)
                free_nbytes -= whole_nbytes
                given += 1
    made = [replace(plan, share=share) for plan, share in zip(plans, shares, strict=True)]
    # Last, so that it takes nothing from jobs in turns.
    for place, recording_nbytes in recordings_nbytes.items():
        had, enough = plans[place], made[place].share
        spare_nbytes = free_nbytes + enough.budget_nbytes - had.share.budget_nbytes
        most_nbytes = _most_nbytes(jobs[place], had.share, spare_nbytes)
        if recording_nbytes <= most_nbytes and _stays(had.share, had.job_plan.program):
            made[place] = replace(had, share=replace(had.share, recorded_nbytes=recording_nbytes))
            free_nbytes = spare_nbytes - recording_nbytes
    return tuple(made)


def _most_nbytes(job: JobRequest, share: Share, free_nbytes: int) -> int:
    """Return how much a job may have beyond its share."""
    if job.memory_limit_nbytes is None:
        return free_nbytes
    return max(0, min(free_nbytes, job.memory_limit_nbytes - share.budget_nbytes))


def held_nbytes(graph: StepGraph, program: Program, device: DeviceSpec, room_nbytes: int) -> int:
    """Return what a job holds, its state included, while a recording of the program is replayed.

    graph: the program's.
    room_nbytes: where so much is enough, no search for places is made.
    """
    beside_nbytes = recorded_memory(
        graph, program, steers=device.steers, room_nbytes=room_nbytes - program.resident_nbytes
    ).nbytes
    return program.resident_nbytes + beside_nbytes


def is_recordable(share: Share, graph: StepGraph, program: Program, device: DeviceSpec) -> bool:
    """Whether a share has room for a recording of the program: its recorded part or, with none, all of it."""
    if not share.recorded_nbytes:
        return held_nbytes(graph, program, device, share.budget_nbytes) <= share.budget_nbytes
    room_nbytes = share.recorded_nbytes
    return (
        recorded_memory(graph, program, steers=device.steers, room_nbytes=room_nbytes).nbytes <= room_nbytes
    )


def is_taken_down(job: JobRequest) -> bool:
    """Whether the job trains, or goes forward over many rows; a model that is served waits for each row."""
    return job.unused_ns is None and (job.repeats or any(op.phase is Phase.BACKWARD for op in job.graph.ops))


def _stays(share: Share, program: Program) -> bool:
    """Whether the job's tensors are where an iteration begins also after the others' turns."""
    return not share.transit_nbytes and 0 < share.resident_nbytes == program.resident_nbytes
