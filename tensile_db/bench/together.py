"""Several jobs on one simulated device at once: their programs, walked as the executor walks them.

The device runs one op at a time, and each channel one copy, first come, first served, whoever's they are.  A
job takes up its newest program (`scheduler/lowering.py`) when an iteration begins, and first moves the
persistent tensors to where that starts from.  Memory is counted as in `scheduler/timeline.py`: a copy to the
device from its start, a copy to the host until its end.  Deterministic; ties go to the job that came first.

Source: ours.
Differs: a GPU also runs ops of several jobs at once where they leave room; here they never overlap.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from tensile_db.graph import StepGraph, TensorId
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.plan import DeviceSpec, Rewriting
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Instruction, Program
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import as_rewritten


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job, when it comes, and how long it stays."""

    graph: StepGraph
    #: By op id, ns.
    latencies_ns: tuple[int, ...]
    at_ns: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The plans in force from a time on; None for jobs that are not there yet."""

    at_ns: int
    programs: tuple[Program | None, ...]
    #: Of jobs whose plans rewrite their graphs, by their place.
    rewritings: Mapping[int, Rewriting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What came of it; times are ns from the first arrival."""

    #: When the last job was done.
    makespan_ns: int
    #: By job.
    done_ns: tuple[int, ...]
    #: The most that a job held at any time; by job.
    peaks_nbytes: tuple[int, ...]
    #: The most that all jobs held at one time.
    device_peak_nbytes: int


def run_together(jobs: Sequence[Arrival], stages: Sequence[Stage], device: DeviceSpec) -> Course:
    """Run all jobs to their ends.

    stages: by time; the first holds from the first arrival, and each has a program for every job that is
    there.
    """
    return _Device(jobs, stages, device).run()


@dataclass(slots=True)
class _Job:
    arrival: Arrival
    number: int
    now_ns: int
    #: Of the program, and so rewritten as its plan has it.
    graph: StepGraph
    latencies_ns: Sequence[int]
    rewriting: Rewriting = field(default_factory=Rewriting)
    program: Program | None = None
    #: What is still to be done of the iteration, last first.
    todo: list[Instruction] = field(default_factory=list)
    iterations: int = 0
    #: On the device, or on the way to or from it.
    held: set[TensorId] = field(default_factory=set)
    #: Tensors whose copy on the host is theirs still.
    valid: set[TensorId] = field(default_factory=set)
    #: By tensor with a copy under way: (to the host?, its end once it has begun).
    copies: dict[TensorId, tuple[bool, int | None]] = field(default_factory=dict)
    #: No copy of the same direction begins before the ones handed over earlier.
    in_line_ns: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    awaiting: TensorId | None = None
    nbytes: int = 0
    done_ns: int = 0


#: What the queue of events holds: at a time, either a job goes on or one of its copies is ready.
_Event = tuple[int, int, int, TensorId | None]


class _Device:
    def __init__(self, jobs: Sequence[Arrival], stages: Sequence[Stage], device: DeviceSpec) -> None:
        self._jobs = [
            _Job(arrival=job, number=n, now_ns=job.at_ns, graph=job.graph, latencies_ns=job.latencies_ns)
            for n, job in enumerate(jobs)
        ]
        self._stages = stages
        self._device = device
        self._free_ns = 0
        self._channel_ns = {True: 0, False: 0}
        self._events: list[_Event] = []
        self._handed_over = 0
        #: (time, change of the device's bytes, whose)
        self._changes: list[tuple[int, int, int]] = []

    def run(self) -> Course:
        """Run all jobs to their ends."""
        for job in self._jobs:
            self._push(job.now_ns, job, None)
        while self._events:
            at_ns, _, number, tensor = heapq.heappop(self._events)
            job = self._jobs[number]
            if tensor is None:
                self._go_on(job, at_ns)
            else:
                self._begin_copy(job, tensor, at_ns)
        peaks_nbytes, device_peak_nbytes = self._peaks_nbytes()
        return Course(
            makespan_ns=max(job.done_ns for job in self._jobs) - min(job.arrival.at_ns for job in self._jobs),
            done_ns=tuple(job.done_ns for job in self._jobs),
            peaks_nbytes=peaks_nbytes,
            device_peak_nbytes=device_peak_nbytes,
        )

    def _push(self, at_ns: int, job: _Job, copy_of: TensorId | None) -> None:
        self._handed_over += 1
        heapq.heappush(self._events, (at_ns, self._handed_over, job.number, copy_of))

    def _go_on(self, job: _Job, at_ns: int) -> None:
        """Do one instruction of a job, and come back when the next one is due."""
        job.now_ns = max(job.now_ns, at_ns)
        if not job.todo and not self._begin_iteration(job):
            return
        match instruction := job.todo.pop():
            case Compute():
                self._compute(job, instruction)
            case CopyOut() | CopyIn():
                self._hand_over(job, instruction)
            case Await(tensor=tensor):
                if job.copies[tensor][1] is None:
                    job.awaiting = tensor
                    return
                self._settle(job, tensor)
            case Free(tensor=tensor):
                job.held.discard(tensor)
                job.valid.discard(tensor)
                self._charge(job, job.now_ns, -self._size(job, tensor))
            case _:
                assert_never(instruction)
        self._push(job.now_ns, job, None)

    def _begin_iteration(self, job: _Job) -> bool:
        """Fill `todo` with the next iteration; return False where there is none."""
        if job.iterations == job.arrival.iterations:
            job.done_ns = job.now_ns
            self._charge(job, job.now_ns, -job.nbytes)
            return False
        job.iterations += 1
        stage = [stage for stage in self._stages if stage.at_ns <= job.now_ns][-1]
        newest = stage.programs[job.number]
        assert newest is not None, "a job that has arrived has a plan"
        self._rewrite_as(job, stage.rewritings.get(job.number, Rewriting()))
        job.todo = list(reversed(newest.instructions))
        if job.program is None:
            self._place(job, newest)
        elif newest is not job.program:
            job.todo += reversed(self._moves(job, newest))
        job.program = newest
        return True

    def _rewrite_as(self, job: _Job, rewriting: Rewriting) -> None:
        """Go on with a graph rewritten like this; between iterations only persistent tensors are there."""
        if rewriting == job.rewriting:
            return
        arrival = job.arrival
        whole = JobRequest(job_id=job.number, graph=arrival.graph, latencies_ns=arrival.latencies_ns)
        made = as_rewritten(whole, rewriting, self._device)
        id_of = {tensor.name: tensor.id for tensor in made.graph.tensors if tensor.persistent}
        job.held = {id_of[job.graph.tensors[tensor].name] for tensor in job.held}
        job.valid = {id_of[job.graph.tensors[tensor].name] for tensor in job.valid}
        job.graph, job.latencies_ns, job.rewriting = made.graph, made.latencies_ns, rewriting

    def _place(self, job: _Job, program: Program) -> None:
        """Put the persistent tensors where the first program starts from; they come from the host."""
        on_host = set(program.start_on_host)
        for tensor in job.graph.tensors:
            if tensor.persistent and tensor.id not in on_host:
                job.held.add(tensor.id)
                self._charge(job, job.now_ns, tensor.nbytes)
            elif tensor.persistent:
                job.valid.add(tensor.id)

    def _moves(self, job: _Job, program: Program) -> list[Instruction]:
        """Return what brings the persistent tensors to where a program starts from."""
        on_host = set(program.start_on_host)
        persistent = [tensor.id for tensor in job.graph.tensors if tensor.persistent]
        leave = [tensor for tensor in persistent if tensor in on_host and tensor in job.held]
        come = [tensor for tensor in persistent if tensor not in on_host and tensor not in job.held]
        return [
            *(CopyOut(tensor=tensor) for tensor in leave),
            *(Await(tensor=tensor) for tensor in leave),
            *(CopyIn(tensor=tensor) for tensor in come),
            *(Await(tensor=tensor) for tensor in come),
        ]

    def _compute(self, job: _Job, compute: Compute) -> None:
        op = job.graph.ops[compute.op]
        begin_ns = max(job.now_ns, self._free_ns)
        job.now_ns = self._free_ns = begin_ns + job.latencies_ns[op.id]
        for tensor in op.writes:
            if tensor not in job.held:
                job.held.add(tensor)
                self._charge(job, begin_ns, self._size(job, tensor))
            if not (compute.recompute and job.graph.tensors[tensor].persistent):
                job.valid.discard(tensor)
        self._charge(job, begin_ns, op.workspace_nbytes)
        self._charge(job, job.now_ns, -op.workspace_nbytes)

    def _hand_over(self, job: _Job, copy: CopyOut | CopyIn) -> None:
        to_host = isinstance(copy, CopyOut)
        job.copies[copy.tensor] = (to_host, None)
        ready_ns = job.now_ns + copy.delta_ns
        if self._is_copy(job, copy.tensor, to_host=to_host):
            ready_ns = job.in_line_ns[to_host] = max(ready_ns, job.in_line_ns[to_host])
        self._push(ready_ns, job, copy.tensor)

    def _begin_copy(self, job: _Job, tensor: TensorId, at_ns: int) -> None:
        to_host, _ = job.copies[tensor]
        nbytes = self._size(job, tensor)
        end_ns = at_ns
        if self._is_copy(job, tensor, to_host=to_host):
            channel = to_host if self._device.duplex else True
            rate = self._device.d2h_bytes_per_s if to_host else self._device.h2d_bytes_per_s
            at_ns = max(at_ns, self._channel_ns[channel])
            self._channel_ns[channel] = end_ns = at_ns + copy_ns(nbytes, rate)
        job.copies[tensor] = (to_host, end_ns)
        if to_host:
            self._charge(job, end_ns, -nbytes)
        else:
            job.held.add(tensor)
            self._charge(job, at_ns, nbytes)
        if job.awaiting == tensor:
            job.awaiting = None
            self._settle(job, tensor)
            self._push(job.now_ns, job, None)

    def _is_copy(self, job: _Job, tensor: TensorId, *, to_host: bool) -> bool:
        """Whether there is something to copy: what the host has still leaves at once, and does not queue."""
        return not (to_host and tensor in job.valid)

    def _settle(self, job: _Job, tensor: TensorId) -> None:
        """End a copy that a job has waited for."""
        to_host, end_ns = job.copies.pop(tensor)
        assert end_ns is not None, "only a copy that has begun is settled"
        job.now_ns = max(job.now_ns, end_ns)
        job.valid.add(tensor)
        if to_host:
            job.held.discard(tensor)

    def _size(self, job: _Job, tensor: TensorId) -> int:
        return job.graph.tensors[tensor].nbytes

    def _charge(self, job: _Job, at_ns: int, nbytes: int) -> None:
        self._changes.append((at_ns, nbytes, job.number))
        job.nbytes += nbytes

    def _peaks_nbytes(self) -> tuple[tuple[int, ...], int]:
        """Return the most that each job held at any time, and that all held at one time."""
        held, peaks = [0] * len(self._jobs), [0] * len(self._jobs)
        together = peak = 0
        # At one time, what leaves makes room for what comes.
        for _, nbytes, number in sorted(self._changes):
            held[number] += nbytes
            together += nbytes
            peaks[number] = max(peaks[number], held[number])
            peak = max(peak, together)
        return tuple(peaks), peak
