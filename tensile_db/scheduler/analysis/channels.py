"""Copy channels as booked time: each serves one copy at a time.

Source: TENSILE section IV-C, feasible time intervals.
"""

from bisect import bisect_right, insort
from itertools import islice

from tensile_db.scheduler.plan import DeviceSpec

NS_PER_S = 1_000_000_000


def copy_ns(nbytes: int, bytes_per_s: int) -> int:
    """Return the time that a copy takes, rounded up."""
    return -(-nbytes * NS_PER_S // bytes_per_s)


class Channel:
    """Booked half-open intervals [begin_ns, end_ns) of one channel within one iteration."""

    def __init__(self) -> None:
        self._booked: list[tuple[int, int]] = []

    def earliest(self, begin_ns: int, end_ns: int, duration_ns: int) -> int | None:
        """Return the earliest start of a free stretch of this duration within [begin_ns, end_ns), or None."""
        if not duration_ns:
            # Nothing is copied, so nothing has to be free.
            return begin_ns
        start = begin_ns
        index = max(0, bisect_right(self._booked, (begin_ns, begin_ns)) - 1)
        for booked_begin, booked_end in islice(self._booked, index, None):
            if booked_end <= start:
                continue
            if booked_begin >= start + duration_ns:
                break
            start = booked_end
            if start + duration_ns > end_ns:
                return None
        return start if start + duration_ns <= end_ns else None

    def latest(self, begin_ns: int, end_ns: int, duration_ns: int) -> int | None:
        """Return the latest start of a free stretch of this duration within [begin_ns, end_ns), or None."""
        start = end_ns - duration_ns
        for index in range(bisect_right(self._booked, (end_ns, end_ns)) - 1, -1, -1):
            booked_begin, booked_end = self._booked[index]
            if start < begin_ns or booked_end <= start:
                break
            start = min(start, booked_begin - duration_ns)
        return start if start >= begin_ns else None

    def book(self, start_ns: int, duration_ns: int) -> None:
        """Take a free stretch; one of no duration takes nothing."""
        if duration_ns:
            insort(self._booked, (start_ns, start_ns + duration_ns))

    def unbook(self, start_ns: int, duration_ns: int) -> None:
        """Give a booked stretch back."""
        if duration_ns:
            self._booked.remove((start_ns, start_ns + duration_ns))


class Link:
    """The channels between a device and its host, shared evenly by `jobs` jobs that do not coordinate."""

    def __init__(self, device: DeviceSpec, jobs: int = 1) -> None:
        self.duplex = device.duplex
        self.to_host = Channel()
        self.to_device = Channel() if device.duplex else self.to_host
        self._device = device
        self._out_bytes_per_s = max(1, device.d2h_bytes_per_s // jobs)
        self._in_bytes_per_s = max(1, device.h2d_bytes_per_s // jobs)

    def out_ns(self, nbytes: int) -> int:
        """Return the time of a copy to the host."""
        return copy_ns(nbytes, self._out_bytes_per_s)

    def in_ns(self, nbytes: int) -> int:
        """Return the time of a copy to the device."""
        return copy_ns(nbytes, self._in_bytes_per_s)

    def ops_lose_ns(self, nbytes: int) -> int:
        """Return what both copies of a swap take of the ops' time."""
        return 2 * self._device.ops_lose_ns(nbytes)
