"""A program's iteration, taken down once and replayed over memory that stays where it is.

The program is walked over blocks of its own, which stand for the job's: nothing of the job's changes by it,
so that what cannot be taken down is simply run op by op, as before.  Persistent tensors that begin on the
device keep their places there, also while they are away; so an iteration ends with the addresses with which
it began.  That may take more memory than the program's peak; where the job's budget has no room for it,
nothing is taken down.

The job's account is charged with all that the recording holds, until it is closed.

Source: ours; CUDA C++ Programming Guide, "CUDA Graphs".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from tensile_db.capture.step import CapturedStep, View
from tensile_db.errors import DeviceOutOfMemory, HostOutOfMemory, JobCancelled, TensileError
from tensile_db.scheduler.program import Compute, Instruction
from tensile_db.scheduler.sharing.growing_range import alive_nbytes
from tensile_db.scheduler.sharing.host_buffers import host_buffers
from tensile_db.scheduler.sharing.recorded_memory import RecordedMemory
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.recording import NotRecorded, NotRecordedNow, Recording
from tensile_db.worker.devices.under_way import Fetched
from tensile_db.worker.execution.binding import Batch, Binding
from tensile_db.worker.execution.device_failures import loss_shown_by
from tensile_db.worker.execution.fixed_calls import fixed_call
from tensile_db.worker.execution.held_ops import HeldOps
from tensile_db.worker.execution.job_memory import JobMemory, view_of
from tensile_db.worker.execution.joined_ops import JoinedOps
from tensile_db.worker.execution.passages import Passage, draws, is_reported_late, passages_of
from tensile_db.worker.execution.recording_swapper import HighWater, RecordingSwapper
from tensile_db.worker.execution.steering import Steering

#: What an instruction is to be taken down within, by its place in the program.
Around = Callable[[int], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class _Begins:
    """Where a persistent tensor of the job's is when an iteration begins and when it ends."""

    block: Block
    storage: torch.UntypedStorage | None
    host: torch.UntypedStorage | None

    def holds(self, of: Block) -> bool:
        return of.storage is self.storage and of.host is self.host


class RecordedIteration:
    """Used by the job's thread only.  It draws from the job's generator as the program would."""

    def __init__(
        self,
        step: CapturedStep,
        should_hold: RecordedMemory,
        memory: JobMemory,
        blocks: Sequence[Block],
    ) -> None:
        """Take a program down, from where the job's tensors are now.

        should_hold: the program as it is taken down, the bytes for it, and where its tensors are to be.
        blocks: the job's, by tensor id; ops must have run before, for first runs do more than later ones.
        Raises NotRecorded; then it is as if nothing had been tried.  Raises DeviceLost.
        """
        #: How often it was replayed.
        self.replays = 0
        #: How many passages it has.
        self.passages = 0
        #: How often memory came elsewhere than it was steered (steered_memory.py); None: none was steered.
        self.astray: int | None = None
        self._step = step
        self._program = should_hold.gathered.program
        self._memory = memory
        self._device = memory.device
        self._in_float32 = partial(memory.device.in_float32, tf32=step.tf32)
        persistent = dict.fromkeys(block for block in blocks if block.persistent)
        self._begins = tuple(_Begins(block, block.storage, block.host) for block in persistent)
        self._scalars: dict[str, float] = {}
        #: Where batches go, and what is reported, by name; without holding their memory.
        self._inputs: list[torch.Tensor] = []
        self._outputs: dict[str, torch.Tensor] = {}
        #: What is reported is nobody else's until the iteration has ended.
        self._reported: list[torch.UntypedStorage] = []
        self._parts: list[Callable[[], None]] = []
        self._held = HighWater(memory.account)
        self._held_ops = HeldOps()
        self._joined_ops = JoinedOps(self._held_ops)
        self._should_hold = should_hold
        try:
            self._reserve()
            self._recording: Recording = self._device.open_recording()
        except BaseException as error:
            self._held.settle(0)
            refusal = self._refusal_of(error)
            if refusal is error:
                raise
            raise refusal from error
        twins = {block: _twin(block) for block in persistent}
        stands = [twins.get(block) or _twin(block) for block in blocks]
        self._swapper = RecordingSwapper(self._device, self._recording, self._held, stands, self._parts)
        try:
            with self._device.computing():
                self._held_ops.find(step, self._device)
                self._joined_ops.find(step, should_hold.gathered, self._device)
            self._take_down(stands, twins)
            # What the device really holds.
            self._held.settle(self._recording.nbytes)
        except BaseException as error:
            self.close()
            refusal = self._refusal_of(error)
            if refusal is error:
                raise
            raise refusal from error

    @property
    def nbytes(self) -> int:
        """Device memory that it holds."""
        return self._held.nbytes

    @property
    def joined(self) -> int:
        """How many ops are handed over as one with others."""
        return self._joined_ops.count

    @property
    def host_sizes(self) -> list[int]:
        """Sizes of the host's buffers that it holds: an iteration op by op needs no more than such."""
        return self._swapper.host_sizes

    @property
    def swapped_out_nbytes(self) -> int:
        """Bytes that a replay copies to the host."""
        return self._swapper.out_nbytes

    @property
    def swapped_in_nbytes(self) -> int:
        """Bytes that a replay copies to the device."""
        return self._swapper.in_nbytes

    def is_in_place(self) -> bool:
        """Whether the job's tensors are where they were when it was taken down."""
        return all(begins.holds(begins.block) for begins in self._begins)

    def replaying(self) -> AbstractContextManager[None]:
        """Have the thread, which computes on the device, hand a replay over beside other jobs' kernels."""
        return self._recording.replaying()

    def replay(
        self, batch: Batch, scalars: Mapping[str, float], should_stop: Callable[[], bool]
    ) -> dict[str, Fetched]:
        """Hand over an iteration of tensors that are in place; return what it reports.

        The caller is within `replaying`.
        Raises what op_failure and device_failures tell of, and JobCancelled where should_stop says so: then
        the job's tensors are worth nothing.
        """
        self.replays += 1
        self._scalars.update(scalars)
        self._held_ops.load(scalars, self._device)
        self._load(batch)
        for part in self._parts:
            if should_stop():
                raise JobCancelled("the job was stopped during an iteration")
            part()
        return {name: self._device.fetch(tensor) for name, tensor in self._outputs.items()}

    def close(self) -> None:
        """Give back all that it holds, also after a replay broke off."""
        self._swapper.abandon_copies()
        self._parts.clear()
        self._inputs.clear()
        self._outputs.clear()
        self._reported.clear()
        self._held_ops.close()
        self._recording.close()
        self._held.settle(0)
        self._swapper.close()
        # What the job lets go of from now on is free, though whoever replayed may not have noticed yet.
        self._begins = ()

    def _reserve(self) -> None:
        """Charge for what the recording is going to hold, before it takes anything.

        The allocator gives it pages and leaves holes, of which the charges below know nothing: without this
        it would for a moment hold what others have been promised.
        """
        graph, program, account = self._step.graph, self._program, self._memory.account
        room_nbytes = account.budget_nbytes - account.used_nbytes
        least_nbytes = alive_nbytes(graph, program)
        if least_nbytes > room_nbytes:
            raise NotRecorded(
                f"it would hold {account.used_nbytes + least_nbytes} bytes with its state,"
                f" and {account.budget_nbytes} are there"
            )
        # What libraries take beside is estimated, and may fit where the estimate does not.
        self._held.reserve(min(room_nbytes, self._should_hold.nbytes))

    def _reserve_host(self, stands: Sequence[Block]) -> None:
        """Take the host's buffers; stands: by tensor id.  Raises HostOutOfMemory."""
        tensors = self._step.graph.tensors
        had = [tensor.id for tensor in tensors if tensor.persistent and stands[tensor.id].host is not None]
        self._swapper.reserve_host(host_buffers(self._step.graph, self._program, had=had))

    def _take_down(self, stands: Sequence[Block], twins: Mapping[Block, Block]) -> None:
        """Walk the program; stands: the recording's own blocks, by tensor id, twins: by the job's."""
        binding = Binding(
            self._step,
            stands,
            device=self._recording,
            account=self._held,
            swapper=self._swapper,
            generator=self._recording.generator,
            in_float32=self._in_float32,
        )
        try:
            self._reserve_host(stands)
            with self._recording.taking_down(), self._steering(stands) as around:
                self._held_ops.place(self._recording, self._held)
                self._place_batch(binding, stands, around)
                self._walk(binding, stands, around)
            for begins in self._begins:
                if not begins.holds(twins[begins.block]):
                    raise NotRecorded(f"{begins.block.name} does not end an iteration where it begins it")
        finally:
            binding.close()
            for block in stands:
                block.forget_storage()

    @contextmanager
    def _steering(self, stands: Sequence[Block]) -> Iterator[Around]:
        """Yield what each instruction is to be taken down within."""
        steered = self._should_hold.steered
        if steered is None:
            yield lambda _: nullcontext()
            return
        steering = Steering(self._step.graph, self._program, steered, self._recording, stands)
        try:
            yield steering.instruction
        finally:
            steering.close()
            self.astray = steering.astray

    def _place_batch(self, binding: Binding, stands: Sequence[Block], around: Around) -> None:
        """Give the batch memory from the iteration's beginning, where it is brought."""
        graph = self._step.graph
        for index, instruction in enumerate(self._program.instructions):
            if isinstance(instruction, Compute):
                op = graph.ops[instruction.op]
                if op.target == "tensile.load_batch":
                    with around(index):
                        binding.place(op, self._recording.allocate)
        self._inputs = [self._fixed(stands, view) for view in self._step.inputs]

    def _walk(self, binding: Binding, stands: Sequence[Block], around: Around) -> None:
        instructions = self._program.instructions
        if not is_reported_late(self._step, instructions):
            raise NotRecorded("what is reported is written again before the iteration has ended")
        found = passages_of(self._step, instructions, held=self._held_ops.ops)
        passages = {passage.begin: passage for passage in found}
        self.passages = len(passages)
        index = 0
        while index < len(instructions):
            if index in passages:
                self._passage(binding, stands, passages[index], around)
                index = passages[index].end
                continue
            with around(index):
                if isinstance(single := instructions[index], Compute):
                    self._single(binding, single, stands)
                else:
                    # Copies note themselves.
                    binding.compile(single)[1]()
            index += 1

    def _passage(self, binding: Binding, stands: Sequence[Block], passage: Passage, around: Around) -> None:
        instructions = self._program.instructions[passage.begin : passage.end]
        steps = [self._compiled(binding, instruction, stands) for instruction in instructions]
        place = partial(self._fixed, stands)
        self._joined_ops.put_into(steps, passage, binding, place, self._recording, self._held)
        draw = any(draws(self._step.calls[each.op]) for each in instructions if isinstance(each, Compute))
        recording, generator = self._recording, self._memory.generator if draw else None
        with recording.passage() as taken, self._swapper.within_passage():
            for index, step in enumerate(steps, start=passage.begin):
                with around(index):
                    step()
        self._parts.append(lambda: recording.replay(taken, generator))

    def _compiled(
        self, binding: Binding, instruction: Instruction, stands: Sequence[Block]
    ) -> Callable[[], None]:
        """Return what carries an instruction out while it is taken down."""
        if isinstance(instruction, Compute):
            match self._step.graph.ops[instruction.op].target:
                case "tensile.load_batch":
                    return lambda: None
                case "tensile.report":
                    return lambda: self._report(stands)
            if (op := instruction.op) in self._held_ops.ops:
                place = partial(self._fixed, stands)
                return lambda: self._held_ops.take_down(op, binding, place, self._recording, self._held)
        return binding.compile(instruction)[1]

    def _report(self, stands: Sequence[Block]) -> None:
        """Note where what is reported is, and keep it there."""
        for name, view in self._step.outputs.items():
            self._outputs[name] = self._fixed(stands, view)
            block = stands[view.tensor]
            assert block.storage is not None, f"{name} is nowhere"
            self._reported.append(block.storage)
            # It is let go of in the walk, and yet held.
            self._swapper.keep(block)

    def _single(self, binding: Binding, instruction: Compute, stands: Sequence[Block]) -> None:
        """Do the bookkeeping of an op that is run by itself, and note the call."""
        if self._step.calls[instruction.op].function is None:
            self._compiled(binding, instruction, stands)()
            return
        assert not instruction.recompute, "what differs each time is never run twice"
        op, call = self._step.graph.ops[instruction.op], self._step.calls[instruction.op]
        binding.place(op, self._recording.allocate)
        part = fixed_call(
            op,
            call,
            lambda view: self._fixed(stands, view),
            self._scalars,
            device=self._device,
            generator=self._memory.generator,
            default_generator=self._device.default_generator,
            in_float32=self._in_float32,
        )
        self._parts.append(part)

    def _fixed(self, stands: Sequence[Block], view: View) -> torch.Tensor:
        """Return the tensor that a view is at this place in the walk, without holding its memory."""
        storage = stands[view.tensor].storage
        assert storage is not None, f"tensor {view.tensor} is nowhere"
        return view_of(self._recording.at(storage), view)

    def _load(self, batch: Batch) -> None:
        assert len(batch) == len(self._inputs), f"{len(batch)} arrays for {len(self._inputs)} inputs"
        for tensor, source in zip(self._inputs, batch, strict=True):
            shape, wanted = tuple(source.shape), tuple(tensor.shape)
            assert shape == wanted, f"a batch of shape {shape} for {wanted}"
            self._device.fill(tensor, source)

    def _refusal_of(self, error: BaseException) -> BaseException:
        """Return what the attempt ends with, once all that it held is closed."""
        # A broken invariant is none of the program's faults.
        if isinstance(error, NotRecorded | AssertionError) or not isinstance(error, Exception):
            return error
        # Only now: while it was taken down, ops could not ask.
        if (loss := loss_shown_by(error, self._device)) is not None:
            return loss
        kind = NotRecordedNow if isinstance(error, HostOutOfMemory) else NotRecorded
        elsewhere = f"; {self.astray} times memory came elsewhere than it was steered" if self.astray else ""
        return kind(_reason(error) + elsewhere)


def _twin(block: Block) -> Block:
    """Return a block of the recording's own for one of the job's."""
    twin = Block(name=block.name, nbytes=block.nbytes, persistent=block.persistent)
    if block.persistent:
        twin.storage, twin.host = block.storage, block.host
    return twin


def _reason(error: Exception) -> str:
    if isinstance(error, DeviceOutOfMemory):
        return (
            f"it would hold {error.used_nbytes + error.wanted_nbytes} bytes with its state,"
            f" and {error.capacity_nbytes} are there"
        )
    message = error.message if isinstance(error, TensileError) else f"{type(error).__name__}: {error}"
    return " ".join(message.split())[:300]
