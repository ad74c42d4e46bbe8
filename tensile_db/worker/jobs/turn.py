"""A job's turns on its device: taken before it computes, given back when others wait."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tensile_db.scheduler.program import Program
from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.mailbox import Mailbox
from tensile_db.worker.messages import JobId
from tensile_db.worker.turnstile import Turnstile


class Turn:
    """Used by the job's thread only."""

    def __init__(
        self, turnstile: Turnstile, mailbox: Mailbox, memory: JobMemory, *, job: JobId, lingers: bool = False
    ) -> None:
        """The job has come in at the turnstile already; lingers: what leaves may stay until it has to."""
        self._turnstile = turnstile
        self._mailbox = mailbox
        self._memory = memory
        self._job = job
        self._lingers = lingers
        self._share: Share | None = None
        self._left_ns = 0
        self._held = False
        self._iterations = 0
        self._taken_s = 0.0
        #: What turns found missing of what their programs begin with, in all.
        self.brought_nbytes = 0
        # What is replayed may be kept between turns, and go there.
        memory.freeing = partial(turnstile.freeing, job)

    def change(self, share: Share) -> None:
        """Wait for room for a new share, and hold no more than that between turns.  Raises Stopped."""
        self.end()
        while not self._turnstile.change(self._job, share, partial(self._move, share), self._must_stop):
            self._mailbox.check()
        self._share = share

    def last(self, iterations: int) -> None:
        """Have turns last so many iterations from now on, where others wait for them."""
        assert self._share is not None
        self._share = replace(self._share, iterations=iterations)

    def take(self, executor: Executor, program: Program, *, left_ns: int | None = None) -> bool:
        """Wait for a turn in which to run a program, and bring the tensors to where it begins.

        left_ns: what the job has still to do, predicted; None: as before.
        Returns False, without a turn, where there is a newer plan to be taken up first.  Raises Stopped.
        """
        if left_ns is not None:
            self._left_ns = left_ns
        if not self._held:
            self._held = self._turnstile.take(
                self._job,
                left_ns=self._left_ns,
                give_up=self._has_news,
                approach=self._approach(executor, program),
            )
            self._iterations, self._taken_s = 0, time.monotonic()
        if not self._held:
            self._go_away()
            self._mailbox.check()
            return False
        if not executor.is_in_place:
            there_nbytes = self._memory.account.used_nbytes
            executor.adopt(program)
            self.brought_nbytes += max(0, self._memory.account.used_nbytes - there_nbytes)
        return True

    def ran(self, took_ns: int, *, least_s: float = 0.0) -> None:
        """Count an iteration; end the turn if it has lasted long enough and somebody waits for it.

        For one that serves a model earlier: somebody waits for it in turn.
        Also where nobody does, if nothing need be moved: somebody may come.
        """
        assert self._share is not None
        self._turnstile.serve(self._job, took_ns)
        self._iterations += 1
        is_long_enough = (
            self._iterations >= self._share.iterations and time.monotonic() >= self._taken_s + least_s
        )
        costs_nothing = self._memory.account.used_nbytes <= self._stays_nbytes(self._share)
        if (is_long_enough and (costs_nothing or self._turnstile.is_wanted(self._job))) or (
            self._iterations >= self._share.least_iterations and self._turnstile.is_wanted_to_serve(self._job)
        ):
            self.linger()

    def linger(self) -> None:
        """Give the turn back, if there is one; the job's memory is left alone until the next, or `end`."""
        if not self._held:
            return
        assert self._share is not None
        left_nbytes = self._memory.account.used_nbytes - self._share.resident_nbytes
        # What replays an iteration is for its own thread to take down.
        if not self._lingers or left_nbytes <= 0 or self._memory.recorded is not None:
            self.end()
            return
        self._held = False
        self._turnstile.linger(
            self._job, left_nbytes, partial(self._memory.shrink, self._share.resident_nbytes)
        )

    def let_go(self) -> None:
        """Have what lingers leave: the job's memory is about to be changed."""
        if self._lingers and not self._held:
            self._turnstile.settle(self._job)

    def end(self) -> None:
        """Give the turn back, if there is one, and let go: something else than computing comes next."""
        self.let_go()
        if self._held:
            assert self._share is not None
            self._hold_no_more(self._share)
            self._held = False
            self._turnstile.give_back(self._job)
            self._go_away()

    def _approach(self, executor: Executor, program: Program) -> Callable[[], None] | None:
        """Return what brings in what the program begins with; None where that is not done ahead."""
        assert self._share is not None
        room_nbytes = self._share.resident_nbytes + self._share.transit_nbytes
        # A forward pass may begin with other tensors than the plan that the share is of.
        if not 0 < program.resident_nbytes <= room_nbytes:
            return None
        return partial(executor.adopt, program, others_nbytes=room_nbytes - program.resident_nbytes)

    def _go_away(self) -> None:
        """Hold no more than the resident part; others may compute meanwhile.

        What was brought in and not written since need not be copied: giving up an approach takes no time.
        """
        assert self._share is not None
        if self._share.transit_nbytes:
            self._memory.shrink(self._share.resident_nbytes)
            self._turnstile.gone(self._job)

    def _move(self, share: Share) -> None:
        # What the plan wants on the device comes with the first turn.
        self._memory.shrink(share.resident_nbytes)
        self._memory.account.set_budget(share.budget_nbytes)
        self._memory.state_leaves = share.transit_nbytes > 0 or share.resident_nbytes == 0
        self._memory.in_place_for = None

    def _hold_no_more(self, share: Share) -> None:
        """Hold what may stay between turns."""
        self._memory.shrink(share.always_nbytes + share.transit_nbytes)
        if self._memory.recorded is None:
            # Room for what is replayed is for nothing else.
            self._memory.shrink(share.resident_nbytes + share.transit_nbytes)

    def _stays_nbytes(self, share: Share) -> int:
        """Return what may stay between turns."""
        return share.resident_nbytes if self._memory.recorded is None else share.always_nbytes

    def _must_stop(self) -> bool:
        return self._mailbox.stop_reason is not None

    def _has_news(self) -> bool:
        return self._mailbox.has_order() or self._mailbox.stop_reason is not None
