"""When a job's iteration is taken down, when it is replayed, and when it is run op by op after all.

A program is taken down once its iterations have become alike, which takes two that were run op by op: first
runs of kernels do more than later ones.  What is taken down holds the memory of an iteration, which the
job's lane has for whoever's turn it is.  So it goes when others take turns, unless the job's share has room
for it between its own, and when the job goes forward, unless there is room for both and nothing has to move
for it.  If that was soon, the next attempt waits longer.

Source: ours.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tensile_db.capture.step import CapturedStep
from tensile_db.scheduler.program import CopyOut, Program
from tensile_db.scheduler.sharing.recorded_memory import RecordedMemory, recorded_memory
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.recording import NotRecorded, NotRecordedNow
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.execution.recorded_iteration import RecordedIteration

log = logging.getLogger(__name__)

#: Iterations run op by op before a program is taken down.
SETTLED_AFTER = 2
#: A recording that was replayed less often did not pay for the taking down.
PAYS_AFTER = 8
#: Iterations between two attempts, at most.
_LONGEST_WAIT = 512

#: Told what became of a program, "replayed" or "not_replayed", and details.
Tell = Callable[[str, Mapping[str, object]], None]


class Replaying:
    """Of one step of one job.  Used by the job's thread only."""

    def __init__(
        self, step: CapturedStep, memory: JobMemory, blocks: Sequence[Block], tell: Tell | None
    ) -> None:
        """blocks: the job's, by tensor id; tell: hears once for each program what became of it."""
        self._step = step
        self._memory = memory
        self._blocks = blocks
        self._tell = tell
        self._recorded: RecordedIteration | None = None
        self._is_refused = not memory.device.can_record
        #: What was told of this program last.
        self._told: str | None = None
        #: Iterations run op by op before the next attempt, and how many of them have been run.
        self._wait = SETTLED_AFTER
        self._alike = 0
        #: `memory.moves` before the last of them: an iteration after a move may leave host copies elsewhere
        #: than it found them, and is not one to be replayed.
        self._settled_after = -1
        #: For so much room, what a recording of the program should hold: to work it out takes up to a second.
        self._recorded_memory: tuple[int, RecordedMemory] | None = None
        #: Why it could not be taken down steered.
        self._steered_refusal: str | None = None

    @property
    def is_replaying(self) -> bool:
        """Whether there is a recording to be replayed."""
        return self._recorded is not None and self._memory.recorded is self._recorded

    @property
    def may_replay(self) -> bool:
        """Whether iterations of the program may be replayed at some time."""
        return not self._is_refused

    def begin_anew(self) -> None:
        """Forget what was found out of the program before: another one was taken up."""
        self._recorded = None
        self._is_refused = not self._memory.device.can_record
        self._told = None
        self._alike, self._wait = 0, SETTLED_AFTER
        self._recorded_memory = None
        self._steered_refusal = None

    def find(self, program: Program) -> RecordedIteration | None:
        """Return what replays the program, taken down now if it is time; None: run it op by op."""
        self._notice_loss()
        if self._recorded is not None and not self._recorded.is_in_place():
            # A host copy lies elsewhere after an iteration op by op.
            self._give_up()
        has_settled = self._alike >= self._wait and self._settled_after == self._memory.moves
        if self._recorded is None and not self._is_refused and has_settled:
            self._take_down(program)
        return self._recorded

    def before_plain(self, program: Program) -> None:
        """Make room for an iteration op by op, which needs memory beside the recording's."""
        self._notice_loss()
        recorded = self._recorded
        beyond_nbytes = program.guaranteed_peak_nbytes - program.resident_nbytes
        if recorded is not None and (
            self._leaves_state_elsewhere(program)
            or not self._memory.has_room_beside(beyond_nbytes, recorded.host_sizes)
        ):
            self._give_up()
        self._alike += 1
        self._settled_after = self._memory.moves

    def _leaves_state_elsewhere(self, program: Program) -> bool:
        """Whether a tensor that begins on the device leaves it, and so comes back to another place."""
        copied = (self._blocks[each.tensor] for each in program.instructions if isinstance(each, CopyOut))
        return any(block.persistent and block.storage is not None for block in copied)

    def _take_down(self, program: Program) -> None:
        self._alike = 0
        # A job has one at a time; it may be another step's.
        self._memory.forget_recorded()
        should_hold = self._memory_of(program)
        try:
            recorded = RecordedIteration(self._step, should_hold, self._memory, self._blocks)
        except NotRecordedNow:
            self._wait = min(2 * self._wait, _LONGEST_WAIT)
            return
        except NotRecorded as refusal:
            if should_hold.steered is not None:
                # What came elsewhere may take more than where all is left to the allocator.
                self._steered_refusal = str(refusal)
                self._alike = self._wait
                return
            self._is_refused = True
            before = f"; steered: {self._steered_refusal}" if self._steered_refusal else ""
            self._say("not_replayed", reason=f"{refusal}{before}")
            return
        self._recorded = self._memory.recorded = recorded
        self._say(
            "replayed",
            held_nbytes=recorded.nbytes,
            passages=recorded.passages,
            joined=recorded.joined,
            **({} if recorded.astray is None else {"steered": True, "astray": recorded.astray}),
        )

    def _memory_of(self, program: Program) -> RecordedMemory:
        account, steers = self._memory.account, self._memory.device.spec.steers
        room_nbytes = account.budget_nbytes - account.used_nbytes
        if self._recorded_memory is None or self._recorded_memory[0] != room_nbytes:
            found = recorded_memory(self._step.graph, program, steers=steers, room_nbytes=room_nbytes)
            self._recorded_memory = room_nbytes, found
        found = self._recorded_memory[1]
        return replace(found, steered=None) if self._steered_refusal else found

    def _give_up(self) -> None:
        """Let the recording go; another one may be made at once, for nothing else has changed."""
        self._memory.forget_recorded()
        self._recorded, self._alike = None, self._wait

    def _notice_loss(self) -> None:
        """Notice that the recording went because its memory was needed elsewhere."""
        lost = self._recorded
        if lost is None or self._memory.recorded is lost:
            return
        self._recorded = None
        if lost.replays < PAYS_AFTER:
            self._wait, self._alike = min(2 * self._wait, _LONGEST_WAIT), 0
        else:
            # It has paid, and kernels have had their first runs: the next one is made as soon as it can be.
            self._wait = self._alike = SETTLED_AFTER

    def _say(self, what: str, **detail: object) -> None:
        if self._told == what:
            return
        self._told = what
        job = self._memory.account.job
        if what == "replayed":
            log.info("job %s: its iteration is replayed from now on: %s", job, detail)
        else:
            log.warning("job %s is run op by op: %s", job, detail["reason"])
        if self._tell is not None:
            self._tell(what, detail)
