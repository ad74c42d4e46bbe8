"""Copies of gaps, booked where they hide behind ops.

Source: ours; docs/planner/auto.md.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence
from tensile_db.scheduler.choosing.gaps import Gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Booked copies of a gap; ns from the iteration's start.  With out_ns 0 the host has the value."""

    out_ns: int
    out_begin_ns: int
    in_ns: int
    in_begin_ns: int


class Bookings:
    """Books the copies of one job's gaps in its link; arrays are of shape (gaps,)."""

    def __init__(self, gaps: Gaps, link: Link) -> None:
        self._gaps = gaps
        self._link = link
        #: No copy out ends before an op up to here, and no copy in begins after an op from there on
        #: (unrolled): as long as bookings only grow.
        self.no_out_before: NDArray[np.int64] = np.full(len(gaps.all), -1, dtype=np.int64)
        self.no_in_after: NDArray[np.int64] = np.full(len(gaps.all), 3 * gaps.ops, dtype=np.int64)

    def forbid(self, index: int) -> None:
        """Note that no copies of a gap are to be booked."""
        self.no_out_before[index] = 3 * self._gaps.ops

    def around(self, index: int, first: int, last: int, *, on_host: bool) -> Copies | None:
        """Book copies that leave the tensor away during the ops [first, last], unrolled; None: none hide.

        on_host: whether it leaves without a copy.
        """
        link, gaps, gap, ops = self._link, self._gaps, self._gaps.all[index], self._gaps.ops
        out_ns, in_ns = self._copy_ns(index, on_host=on_host)
        out_begin_ns = self._earliest_out(index, out_ns)
        if out_begin_ns is None:
            self.forbid(index)
            return None
        if first < ops and out_begin_ns + out_ns > gaps.begin_ns[first]:
            self.no_out_before[index] = bisect_left(gaps.begin_ns, out_begin_ns + out_ns) - 1
            return None
        link.to_host.book(out_begin_ns, out_ns)
        in_from_ns = 0 if gap.wraps else gaps.release_ns[index]
        in_begin_ns = link.to_device.latest(in_from_ns, gaps.due_ns[index], in_ns)
        back = -1 if in_begin_ns is None else bisect_right(gaps.end_ns, in_begin_ns)
        if in_begin_ns is None or last - (ops if gap.wraps else 0) >= back:
            link.to_host.unbook(out_begin_ns, out_ns)
            # On a shared channel the copy back has only made way for the copy out just taken back.
            if link.duplex:
                later = ops if gap.wraps and in_begin_ns is not None else 0
                self.no_in_after[index] = back + later
            return None
        link.to_device.book(in_begin_ns, in_ns)
        return Copies(out_ns=out_ns, out_begin_ns=out_begin_ns, in_ns=in_ns, in_begin_ns=in_begin_ns)

    def anywhere(self, index: int) -> Copies | None:
        """Book copies that leave the tensor away as long as can be; None where they do not hide."""
        out_begin_ns = self.out(index, on_host=False)
        if out_begin_ns is None:
            return None
        return self.back(index, out_begin_ns, on_host=False)

    def out(self, index: int, *, on_host: bool) -> int | None:
        """Book the copy to the host as early as can be, and return when it begins; `back` is to follow."""
        out_ns, _ = self._copy_ns(index, on_host=on_host)
        begin_ns = self._earliest_out(index, out_ns)
        if begin_ns is not None:
            self._link.to_host.book(begin_ns, out_ns)
        return begin_ns

    def back(self, index: int, out_begin_ns: int, *, on_host: bool) -> Copies | None:
        """Book the copy back as late as can be; where it does not hide, the one to the host is given back."""
        link, gaps = self._link, self._gaps
        out_ns, in_ns = self._copy_ns(index, on_host=on_host)
        # During one op at least it is to be away.
        away = min(bisect_left(gaps.begin_ns, out_begin_ns + out_ns), gaps.ops - 1)
        from_ns = 0 if gaps.all[index].wraps else max(out_begin_ns + out_ns, gaps.end_ns[away])
        in_begin_ns = link.to_device.latest(from_ns, gaps.due_ns[index], in_ns)
        if in_begin_ns is None:
            link.to_host.unbook(out_begin_ns, out_ns)
            return None
        link.to_device.book(in_begin_ns, in_ns)
        return Copies(out_ns=out_ns, out_begin_ns=out_begin_ns, in_ns=in_ns, in_begin_ns=in_begin_ns)

    def unbook(self, copies: Copies) -> None:
        """Give booked copies back."""
        self._link.to_host.unbook(copies.out_begin_ns, copies.out_ns)
        self._link.to_device.unbook(copies.in_begin_ns, copies.in_ns)

    def absence(self, index: int, copies: Copies) -> Absence:
        """Anchor booked copies to ops.  Delays count from the next op's begin, so that a stall ends early."""
        gaps, gap = self._gaps, self._gaps.all[index]
        out_position = max(bisect_right(gaps.end_ns, copies.out_begin_ns) - 1, gap.previous)
        back = bisect_right(gaps.end_ns, copies.in_begin_ns)
        next_ns = gaps.begin_ns[out_position + 1] if out_position + 1 < gaps.ops else gaps.end_ns[-1]
        return Absence(
            gap=gap,
            begin=bisect_left(gaps.begin_ns, copies.out_begin_ns + copies.out_ns),
            end=back + gaps.ops if gap.wraps else back,
            out_position=out_position,
            out_delta_ns=max(0, copies.out_begin_ns - next_ns),
            in_delta_ns=max(0, copies.in_begin_ns - gaps.begin_ns[back]),
        )

    def _copy_ns(self, index: int, *, on_host: bool) -> tuple[int, int]:
        """Return what the copies to the host and back take, ns."""
        out_ns, in_ns = self._gaps.copy_ns[index]
        return 0 if on_host else out_ns, in_ns

    def _earliest_out(self, index: int, out_ns: int) -> int | None:
        # Across iterations the copy out ends with the iteration.
        return self._link.to_host.earliest(self._gaps.release_ns[index], self._gaps.end_ns[-1], out_ns)
