"""Runs a job's iterations: walks a verified program, op by op, on a device.

One executor runs one captured step in the job's thread.  The program says what to do; nothing is decided
here.  Memory is charged to the job's account before it is allocated, so that a program which would exceed
its budget fails before it does.

A device's kernels may run later than they are handed over; the host waits for them at the iteration's end.

Source: TENSILE section III-D (Executor).
Differs: no swap-in on demand; a verified program never reads an absent tensor, it waits instead.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from tensile_db.capture.step import CapturedStep
from tensile_db.errors import JobCancelled
from tensile_db.scheduler.program import Compute, CopyOut, Program
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.device import Mark
from tensile_db.worker.execution.binding import Batch, Binding
from tensile_db.worker.execution.device_failures import device_failures
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.execution.recorded_iteration import RecordedIteration
from tensile_db.worker.execution.replaying import Replaying, Tell

#: Instructions that are handed over while the device is held back: kernels and marks of more might not find
#: room in a GPU's queue.
_HANDED_OVER = 64
#: For how long, before it is known how long they take.
_FIRST_HAND_OVER_NS = 4_000_000
#: Longer than the last ones took by this part, for the next may take longer.
_HOLD_LONGER_BY = 4
#: Some take longer once, while memory is taken anew; the next ones need not wait for that.
_LONGEST_HOLD_NS = 6_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResult:
    """What an iteration gave and took."""

    #: By name, on the host: as the step's.
    outputs: dict[str, torch.Tensor]
    #: By op id, of each op's first run; None where they were not asked for.
    latencies_ns: tuple[int, ...] | None
    #: Beyond what it makes, the most that each op's kernels allocated, by op id; None likewise.
    workspaces_nbytes: tuple[int, ...] | None
    elapsed_ns: int
    #: Time spent waiting for copies.
    stall_ns: int
    #: The most device bytes that the job held.
    peak_nbytes: int
    #: Bytes really copied: a swap-out whose host copy was still valid counts nothing.
    swapped_out_nbytes: int
    swapped_in_nbytes: int
    recomputed_ops: int
    #: Nobody looks into one that is replayed: it tells of no stalls.
    replayed: bool = False


class Executor:
    """One step of one job.  Used by the job's thread only."""

    def __init__(
        self,
        step: CapturedStep,
        memory: JobMemory,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        replay: bool = True,
        tell: Tell | None = None,
        kernels_alone: bool | None = None,
    ) -> None:
        """Bind a step to the job's tensors; should_stop: asked before every op, so it must be cheap.

        replay: take settled iterations down, where the device can; tell: hears whether it does.
        kernels_alone: leave the host's part in handing ops over out of latencies; None: where iterations may
        be replayed, for then it is none of their time.
        """
        self._step = step
        self._memory = memory
        self._device = memory.device
        self._should_stop = should_stop
        self._blocks = memory.bind(step)
        self._binding = Binding(
            step,
            self._blocks,
            device=memory.device,
            account=memory.account,
            swapper=memory.swapper,
            generator=memory.generator,
            in_float32=partial(memory.device.in_float32, tf32=step.tf32),
        )
        self._replaying = Replaying(step, memory, self._blocks, tell) if replay else None
        self._kernels_alone = kernels_alone
        #: (op id of a first run, else -1; what to do)
        self._walk: list[tuple[int, Callable[[], None]]] = []
        #: What the walk was made of.
        self._program: Program | None = None
        self._recomputed_ops = 0
        self._broken = False

    def adopt(self, program: Program, *, others_nbytes: int | None = None) -> None:
        """Take up a program from the next iteration on.

        Moves the persistent tensors to where the program starts from; what is to leave does so first.  Needed
        again after another step of the job has run.
        others_nbytes: what may stay of tensors that this step does not know; None: what the peak leaves.
        Raises DeviceOutOfMemory; then no program is adopted.
        """
        assert not self._broken, "an iteration broke off; its tensors are worth nothing"
        self._memory.in_place_for = None
        is_new = program is not self._program
        on_host = {self._blocks[tensor] for tensor in program.start_on_host}
        persistent = [block for block in self._blocks if block.persistent]
        swapped_out = [self._blocks[i.tensor] for i in program.instructions if isinstance(i, CopyOut)]
        with device_failures(self._device), self._device.computing():
            if is_new and self._replaying is not None:
                # It is another program's.
                self._memory.forget_recorded()
            moved = self._memory.move(
                to_host=[block for block in persistent if block in on_host],
                to_device=[block for block in persistent if block not in on_host],
                peak_nbytes=program.guaranteed_peak_nbytes,
                others_nbytes=others_nbytes,
            )
            if not moved and self._replaying is None:
                self._make_room_beside_recorded(program, swapped_out)
            elif not self.is_replaying:
                self._memory.forget_recorded()
        if is_new:
            self._walk = [self._binding.compile(instruction) for instruction in program.instructions]
            self._recomputed_ops = sum(isinstance(i, Compute) and i.recompute for i in program.instructions)
            self._program = program
            self._device.host.trim()
            self._memory.swaps_out(self, swapped_out)
            if self._replaying is not None:
                self._replaying.begin_anew()
        self._memory.in_place_for = self
        self._memory.drop_unused_host_copies(persistent)

    def _make_room_beside_recorded(self, program: Program, swapped_out: Sequence[Block]) -> None:
        """Let what is recorded of another step go, unless this program fits beside it and leaves it good."""
        memory = self._memory
        swaps_state = any(block.persistent for block in swapped_out)
        if swaps_state:
            # What comes back comes elsewhere.
            memory.moves += 1
        beyond_nbytes = program.guaranteed_peak_nbytes - program.resident_nbytes
        sizes = [block.nbytes for block in swapped_out if block.host is None]
        if memory.recorded is not None and (swaps_state or not memory.has_room_beside(beyond_nbytes, sizes)):
            memory.forget_recorded()

    @property
    def is_in_place(self) -> bool:
        """Whether the persistent tensors are where the adopted program begins."""
        return self._memory.in_place_for is self

    @property
    def is_replaying(self) -> bool:
        """Whether the next iteration is to be replayed, unless it is asked for details."""
        return self._replaying is not None and self._replaying.is_replaying

    def run_iteration(
        self,
        batch: Batch | None = None,
        update: int = 1,
        *,
        sample_latencies: bool = False,
        measure_workspaces: bool = False,
    ) -> IterationResult:
        """Run one iteration; batch: one array per input, on the host.

        update: the number of its update of the parameters, from 1: the iteration's, but for those before that
        updated nothing.

        measure_workspaces: takes long, and wants a device on which nobody else computes; what a call charges
        for results that are laid out anew counts as workspace, too.

        Raises KernelFailed, DeviceOutOfMemory, DriverOutOfMemory, DeviceLost, and JobCancelled where
        should_stop says so.  After any of them the tensors are worth nothing, and all that can be done is
        `close`.
        """
        assert not self._broken, "an iteration broke off; its tensors are worth nothing"
        assert self.is_in_place, "no program is adopted, or another step has run since"
        account, swapper, device = self._memory.account, self._memory.swapper, self._device
        account.reset_peak()
        swapper.reset_counts()
        recorded = self._recorded(plainly=sample_latencies or measure_workspaces)
        batch = () if batch is None else batch
        scalars = self._step.scalars(update)
        self._broken = True
        replaying = nullcontext() if recorded is None else recorded.replaying()
        with device_failures(device), device.computing(), replaying:
            begin = device.record()
            marks = workspaces_nbytes = None
            if recorded is not None:
                fetched = recorded.replay(batch, scalars, self._should_stop)
            else:
                self._binding.batch = batch
                self._binding.outputs = {}
                self._binding.values.set_scalars(scalars)
                if measure_workspaces:
                    workspaces_nbytes = self._run_watched()
                elif sample_latencies:
                    marks = self._run_sampled()
                else:
                    self._run()
                fetched = self._binding.outputs
            end = device.record()
            # The host waits here, and only here.
            elapsed_ns = device.elapsed_ns(begin, end)
            latencies_ns = None if marks is None else self._latencies_ns(marks)
            outputs = {name: value.get() for name, value in fetched.items()}
        self._broken = False
        self._binding.batch, self._binding.outputs = (), {}
        return IterationResult(
            outputs=outputs,
            latencies_ns=latencies_ns,
            workspaces_nbytes=workspaces_nbytes,
            elapsed_ns=elapsed_ns,
            stall_ns=swapper.stall_ns(),
            peak_nbytes=account.peak_nbytes,
            swapped_out_nbytes=swapper.out_nbytes if recorded is None else recorded.swapped_out_nbytes,
            swapped_in_nbytes=swapper.in_nbytes if recorded is None else recorded.swapped_in_nbytes,
            recomputed_ops=self._recomputed_ops,
            replayed=recorded is not None,
        )

    def _recorded(self, *, plainly: bool) -> RecordedIteration | None:
        """Return what replays this iteration; plainly: it is to be run op by op."""
        if self._replaying is None or self._program is None:
            return None
        with device_failures(self._device):
            recorded = None if plainly else self._replaying.find(self._program)
            if recorded is None:
                self._replaying.before_plain(self._program)
            return recorded

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies on the host of all the job's persistent tensors, between iterations."""
        assert not self._broken, "an iteration broke off; its tensors are worth nothing"
        return self._memory.state()

    def close(self) -> None:
        """Free what this step holds beyond the persistent tensors, also after an iteration broke off."""
        # Who frees the state meanwhile tells the tensors made over it.
        with self._memory.changing:
            self._memory.unbind(self._blocks)
            self._memory.swaps_no_more(self)
            self._binding.close()
        self._walk.clear()
        self._program = None

    def _run(self) -> None:
        should_stop = self._should_stop
        for _, step in self._walk:
            if should_stop():
                raise JobCancelled("the job was stopped during an iteration")
            step()

    def _run_sampled(self) -> list[tuple[int, Mark, Mark]]:
        """Return (op id, before, after) of each op's first run.

        Where the host's part in handing ops over is to be none of their latencies, the device begins with
        some of them when all of these have been handed over.
        """
        should_stop, record = self._should_stop, self._device.record
        holds_back = self._kernels_alone
        if holds_back is None:
            holds_back = self._replaying is not None and self._replaying.may_replay
        marks: list[tuple[int, Mark, Mark]] = []
        hand_over_ns = _FIRST_HAND_OVER_NS
        for first in range(0, len(self._walk), _HANDED_OVER):
            if holds_back:
                self._device.hold_back(min(hand_over_ns + hand_over_ns // _HOLD_LONGER_BY, _LONGEST_HOLD_NS))
            begin_ns = time.perf_counter_ns()
            for op, step in self._walk[first : first + _HANDED_OVER]:
                if should_stop():
                    raise JobCancelled("the job was stopped during an iteration")
                begin = record()
                step()
                if op >= 0:
                    marks.append((op, begin, record()))
            hand_over_ns = time.perf_counter_ns() - begin_ns
        return marks

    def _run_watched(self) -> tuple[int, ...]:
        """Return the workspace of each op's first run, by op id."""
        workspaces_nbytes = [0] * len(self._step.graph.ops)
        for op, step in self._walk:
            if op < 0 or self._step.calls[op].function is None:
                step()
                continue
            self._device.watch_memory()
            step()
            made_nbytes = sum(
                self._blocks[view.tensor].nbytes for view in self._step.calls[op].outputs if view is not None
            )
            workspaces_nbytes[op] = max(0, self._device.watched_nbytes() - made_nbytes)
        return tuple(workspaces_nbytes)

    def _latencies_ns(self, marks: Sequence[tuple[int, Mark, Mark]]) -> tuple[int, ...]:
        latencies_ns, mark_ns = [0] * len(self._step.graph.ops), self._device.mark_ns
        for op, begin, end in marks:
            latencies_ns[op] = max(0, self._device.elapsed_ns(begin, end) - mark_ns)
        return tuple(latencies_ns)
