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
    growing = _GrowingShares(plans, jobs, device)
    # Jobs alone in their lanes first: they need least.  Of these and of the others trainings, which go on for
    # longer than what goes forward once.
    taken_down = [place for place in range(len(plans)) if is_taken_down(jobs[place])]
    # Of those alone with room to replay, by place: what a recording holds beside the state.
    recordings_nbytes: dict[int, int] = {}
    given = 0
    for place in sorted(taken_down, key=lambda place: (growing.takes_turns(place), jobs[place].repeats)):
        if given == MOST_RECORDINGS:
            break
        if not growing.takes_turns(place):
            recording_nbytes = growing.give_in_its_place(place)
            if recording_nbytes is not None:
                recordings_nbytes[place] = recording_nbytes
                given += 1
        elif growing.give_between_turns(place):
            given += 1
    # Last, so that it takes nothing from jobs in turns.
    for place, recording_nbytes in recordings_nbytes.items():
        growing.give_beside(place, recording_nbytes)
    return tuple(replace(plan, share=share) for plan, share in zip(plans, growing.shares, strict=True))


class _GrowingShares:
    """Jobs' shares, by place, and what of the device no share has."""

    def __init__(self, plans: Sequence[SharedPlan], jobs: Sequence[JobRequest], device: DeviceSpec) -> None:
        self._plans = plans
        self._jobs = jobs
        self._device = device
        self._in_lane = Counter(plan.share.lane for plan in plans)
        self.shares = [plan.share for plan in plans]
        self._free_nbytes = device.memory_nbytes - needed_nbytes(self.shares)

    def takes_turns(self, place: int) -> bool:
        """Whether other jobs are in the job's lane."""
        return self._in_lane[self.shares[place].lane] > 1

    def give_in_its_place(self, place: int) -> int | None:
        """Give a job alone what a recording holds beyond its plan: while it is replayed, nothing else runs.

        Returns what a recording holds beside the state; None: there may not be enough for it.
        """
        share, program = self.shares[place], self._plans[place].job_plan.program
        most_nbytes = self._most_nbytes(place, share)
        held = held_nbytes(self._graph(place), program, self._device, share.budget_nbytes + most_nbytes)
        wanted_nbytes = max(0, held - share.budget_nbytes)
        # With less than that it may have enough, for what libraries take is estimated.
        extra_nbytes = min(wanted_nbytes, most_nbytes)
        self._become(place, replace(share, ephemeral_nbytes=share.ephemeral_nbytes + extra_nbytes))
        return held - program.resident_nbytes if extra_nbytes == wanted_nbytes else None

    def give_between_turns(self, place: int) -> bool:
        """Give a job in turns room for a recording, or nothing: with less it would go at each turn's end."""
        share, program = self.shares[place], self._plans[place].job_plan.program
        if not _stays(share, program):
            return False
        most_nbytes = self._most_nbytes(place, share)
        whole_nbytes = recorded_memory(
            self._graph(place), program, steers=self._device.steers, room_nbytes=most_nbytes
        ).nbytes
        return self._record(place, share, whole_nbytes)

    def give_beside(self, place: int, recording_nbytes: int) -> None:
        """Give a job alone room for its recording beside what runs op by op, instead of in its place."""
        had = self._plans[place].share
        if _stays(had, self._plans[place].job_plan.program):
            self._record(place, had, recording_nbytes)

    def _record(self, place: int, share: Share, nbytes: int) -> bool:
        """Let the job's share, else as this one, have so large a recorded part if that fits; tell whether."""
        fits = nbytes <= self._most_nbytes(place, share)
        if fits:
            self._become(place, replace(share, recorded_nbytes=nbytes))
        return fits

    def _become(self, place: int, share: Share) -> None:
        # Nothing changes but recorded parts, and what is ephemeral of jobs alone in their lanes: both count
        # for each job.
        self._free_nbytes += self.shares[place].budget_nbytes - share.budget_nbytes
        self.shares[place] = share

    def _most_nbytes(self, place: int, share: Share) -> int:
        """Return how much the job may have beyond this share, given the others' shares."""
        free_nbytes = self._free_nbytes + self.shares[place].budget_nbytes - share.budget_nbytes
        limit_nbytes = self._jobs[place].memory_limit_nbytes
        if limit_nbytes is None:
            return free_nbytes
        return max(0, min(free_nbytes, limit_nbytes - share.budget_nbytes))

    def _graph(self, place: int) -> StepGraph:
        return planned_graph(self._jobs[place].graph, self._plans[place].job_plan.plan)


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
