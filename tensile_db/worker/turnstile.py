"""Lets jobs' threads have their turns on the device: `scheduler/sharing/turns.py` with a lock, and waiting.

A job comes in, changes its share whenever it takes up a plan, and takes a turn before it computes.  Only
the device's own work happens within a turn: reading rows, writing to the database and saving checkpoints
are for between them.  So who waits for the memory of a state that lingers frees it in its own thread: the
owner's may wait for the database.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tensile_db.scheduler.sharing.member import Phase
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.share import Share
from tensile_db.scheduler.sharing.turns import Turns
from tensile_db.worker.messages import JobId


class Turnstile:
    """One device's.  Safe for all threads."""

    def __init__(self, *, memory_nbytes: int, sharing: str = "auto") -> None:
        """sharing: a name of SHARING_POLICIES."""
        self.sharing = sharing
        self.policy = SHARING_POLICIES[sharing]
        self._changed = threading.Condition()
        self._turns = Turns(memory_nbytes=memory_nbytes, policy=self.policy)
        #: What frees a state that lingers.
        self._leaving: dict[JobId, Callable[[], None]] = {}

    def come_in(self, job: JobId, *, priority: int, serves: bool = False) -> None:
        """Let a job in, which holds nothing yet; serves: a model."""
        with self._changed:
            self._turns.come_in(job, priority=priority, serves=serves)

    def change(self, job: JobId, share: Share, move: Callable[[], None], give_up: Callable[[], bool]) -> bool:
        """Wait for room for a new share, then `move` what the job holds between turns; the job has no turn.

        Returns False where `give_up` said so first; it is asked at every `wake`.
        """
        with self._changed:
            while not self._turns.begin_change(job, share):
                if give_up():
                    self._turns.withdraw(job)
                    # Others may have stood behind it.
                    self._grant()
                    return False
                self._wait()
        # If it fails, the job is about to leave.
        move()
        with self._changed:
            self._turns.end_change(job)
            self._grant()
        return True

    def take(
        self,
        job: JobId,
        *,
        left_ns: int,
        give_up: Callable[[], bool],
        approach: Callable[[], None] | None = None,
    ) -> bool:
        """Wait for a turn; left_ns: what the job has still to do, predicted.

        approach: brings the job's state in; called, if at all, once the next turn of the lane is the job's,
        while another one has its own.
        Returns False, with no turn taken, where `give_up` said so first; it is asked at every `wake`.  A job
        that has approached must then say when it is `gone`.
        """
        with self._changed:
            self._turns.ask(job, left_ns=left_ns, ahead=approach is not None)
            self._grant()
            while self._turns.phase_of(job) is Phase.AWAY and not give_up():
                self._wait()
            approaches = self._turns.phase_of(job) is Phase.APPROACHING
        if approaches:
            assert approach is not None
            approach()
        with self._changed:
            while not self._turns.has_turn(job):
                if give_up():
                    self._turns.withdraw(job)
                    # Others may have stood behind it.
                    self._grant()
                    return False
                self._wait()
            return True

    def is_wanted(self, job: JobId) -> bool:
        """Whether someone else waits for the job's turn to end."""
        with self._changed:
            return self._turns.is_wanted(job)

    def is_wanted_to_serve(self, job: JobId) -> bool:
        """Whether someone who serves a model waits for the job's turn to end."""
        with self._changed:
            return self._turns.is_wanted_to_serve(job)

    def serve(self, job: JobId, took_ns: int) -> None:
        """Count device time that the job has had."""
        with self._changed:
            self._turns.serve(job, took_ns)

    def give_back(self, job: JobId) -> None:
        """End a turn; the job holds no more than it always may, and what is in transit until `gone`."""
        with self._changed:
            self._turns.end(job)
            self._grant()

    def linger(self, job: JobId, nbytes: int, leave: Callable[[], None]) -> None:
        """End a turn, and let so much of the job's state stay beyond its resident part until it is dismissed.

        leave: frees it; called at most once, in any thread, and not while the job has a turn.  Before
        anything else touches the job's memory, `settle`.
        """
        with self._changed:
            self._turns.end(job, lingering_nbytes=nbytes)
            self._leaving[job] = leave
            self._grant()

    def settle(self, job: JobId) -> None:
        """Have what lingers of the job's state leave, and wait until it has."""
        with self._changed:
            self._turns.dismiss(job)
            while self._turns.phase_of(job) is Phase.LEAVING:
                self._wait()

    def gone(self, job: JobId) -> None:
        """The job, which has no turn, holds no more than its resident part."""
        with self._changed:
            self._turns.gone(job)
            self._grant()

    @contextmanager
    def quiet(self, check: Callable[[], None]) -> Iterator[int]:
        """Have nobody compute, allocate or free anything on the device meanwhile; not within a turn.

        Yields what of the memory no job holds, in bytes.  Turns under way are waited for, and others wait.
        check: asked at every `wake` while this waits, may raise to give up.
        """
        with self._changed:
            self._turns.ask_for_quiet()
            try:
                while not self._turns.begin_quiet():
                    check()
                    self._wait()
            except BaseException:
                self._turns.withdraw_quiet()
                self._grant()
                raise
            free_nbytes = self._turns.memory_nbytes - self._turns.held_nbytes
        try:
            yield free_nbytes
        finally:
            with self._changed:
                self._turns.end_quiet()
                self._grant()

    @contextmanager
    def freeing(self, job: JobId) -> Iterator[None]:
        """Have no quiet while a job frees something, in a turn or not; waits for the end of one."""
        with self._changed:
            while not self._turns.begin_freeing(job):
                self._wait()
        try:
            yield
        finally:
            with self._changed:
                self._turns.end_freeing(job)
                self._changed.notify_all()

    def depart(self, job: JobId) -> None:
        """Wait until a job may free all that it holds, for which it needs no turn; then it must `leave`."""
        with self._changed:
            while not self._turns.depart(job):
                self._wait()

    def leave(self, job: JobId) -> None:
        """Let a job out, which holds nothing any more."""
        with self._changed:
            self._turns.leave(job)
            self._leaving.pop(job, None)
            self._grant()
            self._changed.notify_all()

    def set_priority(self, job: JobId, priority: int) -> None:
        """Change a job's priority from its next turn on."""
        with self._changed:
            self._turns.set_priority(job, priority)

    def wake(self) -> None:
        """Have those who wait ask whether to give up."""
        with self._changed:
            self._changed.notify_all()

    def _wait(self) -> None:
        """Have a state leave that was dismissed; where there is none, wait for a change."""
        dismissed = self._turns.take_dismissed()
        if dismissed is None:
            self._changed.wait()
            return
        # Its owner waits in `settle`, or for its turn.
        leave = self._leaving.pop(JobId(dismissed))
        self._changed.release()
        try:
            leave()
        finally:
            # Also where it failed: nobody would have it leave again, and all would wait.
            self._changed.acquire()
            self._turns.gone(dismissed)
            self._grant()

    def _grant(self) -> None:
        self._turns.grant()
        self._changed.notify_all()
