"""Who holds how much of a device's memory, to the byte.

A charge comes before the allocation that it is for, so that nothing is allocated beyond a job's budget or
the device's capacity.  One lock guards a device's accounts; it is held for a few additions.
"""

import threading
from typing import Protocol

from tensile_db.errors import DeviceOutOfMemory
from tensile_db.worker.messages import JobId


class Charges(Protocol):
    """Where memory is charged before it is allocated."""

    @property
    def job(self) -> JobId:
        """Whose it is."""
        ...

    def charge(self, nbytes: int) -> None:
        """Take `nbytes`.  Raises DeviceOutOfMemory, with nothing taken."""
        ...

    def release(self, nbytes: int) -> None:
        """Give `nbytes` back."""
        ...


class DeviceMemory:
    """A device's memory: its capacity and the accounts open on it."""

    def __init__(self, capacity_nbytes: int) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.used_nbytes = 0
        #: The most ever used at once, since reset_peak.
        self.peak_nbytes = 0
        self._lock = threading.Lock()
        self._accounts: dict[JobId, Account] = {}

    def open_account(self, job: JobId, budget_nbytes: int) -> "Account":
        """Return an empty account for `job`, which may hold up to its budget."""
        with self._lock:
            assert job not in self._accounts, f"job {job} has an account already"
            account = Account(self, self._lock, job, budget_nbytes)
            self._accounts[job] = account
            return account

    @property
    def jobs(self) -> frozenset[JobId]:
        """The jobs that have an account at present."""
        with self._lock:
            return frozenset(self._accounts)

    def used_by(self, job: JobId) -> int:
        """Return what a job holds at present, in bytes; 0 where it has no account."""
        with self._lock:
            account = self._accounts.get(job)
            return 0 if account is None else account.used_nbytes

    def reset_peak(self) -> None:
        """Measure the peak from now on."""
        with self._lock:
            self.peak_nbytes = self.used_nbytes

    def validate(self) -> None:
        """Assert what holds at any time."""
        with self._lock:
            assert self.used_nbytes == sum(account.used_nbytes for account in self._accounts.values())
            assert 0 <= self.used_nbytes <= self.peak_nbytes <= self.capacity_nbytes
            for account in self._accounts.values():
                assert 0 <= account.used_nbytes <= account.budget_nbytes

    def _forget(self, job: JobId) -> None:
        with self._lock:
            del self._accounts[job]


class Account:
    """What one job holds.  Made by DeviceMemory.open_account."""

    def __init__(self, memory: DeviceMemory, lock: threading.Lock, job: JobId, budget_nbytes: int) -> None:
        self.job = job
        self.budget_nbytes = budget_nbytes
        self.used_nbytes = 0
        #: The most used at once, since reset_peak.
        self.peak_nbytes = 0
        self._memory = memory
        self._lock = lock

    def charge(self, nbytes: int, *, is_held: bool = True) -> None:
        """Take `nbytes`; is_held: they count in peaks, else they are only kept from others.

        Raises DeviceOutOfMemory, with nothing taken, where the budget or the device's capacity forbids it.
        """
        memory = self._memory
        with self._lock:
            used, total = self.used_nbytes + nbytes, memory.used_nbytes + nbytes
            if used > self.budget_nbytes:
                raise DeviceOutOfMemory(
                    wanted_nbytes=nbytes, used_nbytes=self.used_nbytes, capacity_nbytes=self.budget_nbytes
                )
            if total > memory.capacity_nbytes:
                raise DeviceOutOfMemory(
                    wanted_nbytes=nbytes,
                    used_nbytes=memory.used_nbytes,
                    capacity_nbytes=memory.capacity_nbytes,
                )
            self.used_nbytes = used
            memory.used_nbytes = total
            if is_held:
                self._raise_peaks()

    def release(self, nbytes: int) -> None:
        """Give `nbytes` back."""
        with self._lock:
            assert nbytes <= self.used_nbytes, f"job {self.job} gives back more than it holds"
            self.used_nbytes -= nbytes
            self._memory.used_nbytes -= nbytes

    def note_peaks(self) -> None:
        """Count what is charged at present in peaks."""
        with self._lock:
            self._raise_peaks()

    def reset_peak(self) -> None:
        """Measure the peak from now on."""
        with self._lock:
            self.peak_nbytes = self.used_nbytes

    def set_budget(self, budget_nbytes: int) -> None:
        """Change what the job may hold; it must hold no more than that already."""
        with self._lock:
            assert self.used_nbytes <= budget_nbytes, f"job {self.job} holds more than its new budget"
            self.budget_nbytes = budget_nbytes

    def _raise_peaks(self) -> None:
        memory = self._memory
        if self.used_nbytes > self.peak_nbytes:
            self.peak_nbytes = self.used_nbytes
        if memory.used_nbytes > memory.peak_nbytes:
            memory.peak_nbytes = memory.used_nbytes

    def close(self) -> None:
        """End the account, which must be empty."""
        assert self.used_nbytes == 0, f"job {self.job} leaves {self.used_nbytes} bytes behind"
        self._memory._forget(self.job)  # noqa: SLF001  # the two classes are one mechanism
