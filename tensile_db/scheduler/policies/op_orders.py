"""The orders of ops in which `auto` plans a job: when parameters are updated, and large gradients made.

Source: ours; docs/planner/auto.md.
"""

from collections.abc import Iterator
from functools import cached_property

from tensile_db.graph import OpId
from tensile_db.scheduler.choosing.order import EarlyUpdates
from tensile_db.scheduler.request import JobRequest

#: A gradient of this share of the budget is large.
_LARGE_GRADIENT = 0.05
#: How much later large gradients are made where nobody waits for them, as a share of the time that is left.
_LATE = (0.1, 0.2, 0.3)
#: The same where their updates are also as far apart as the link needs, were it this much faster: part of
#: their state stays on the device.
_LATE_APART = (0.1, 0.2)
_FASTER_LINK = 1.5


class OpOrders:
    """Of one job within one budget."""

    def __init__(
        self, request: JobRequest, budget_nbytes: int, *, bytes_per_s: int, shares_link: bool
    ) -> None:
        """bytes_per_s: the job's part of the link to the host; shares_link: whether others use it, too."""
        self._request = request
        self._budget_nbytes = budget_nbytes
        self._bytes_per_s = bytes_per_s
        self._shares_link = shares_link

    @property
    def has_large_gradients(self) -> bool:
        """Whether there are gradients that take a large share of the budget and can wait."""
        return bool(self._waiting.waiting)

    def usual(self) -> Iterator[tuple[OpId, ...]]:
        """Yield the orders to be tried, each once, the most promising first."""
        updates = EarlyUpdates(self._request.graph, self._request.latencies_ns)
        first = updates.order()
        yield first
        orders = [first, updates.order(self._bytes_per_s)]
        if self.has_large_gradients:
            orders += self.late
        yield from tuple(dict.fromkeys(orders))[1:]

    @cached_property
    def late(self) -> list[tuple[OpId, ...]]:
        """The orders in which large gradients wait."""
        orders = [self._waiting.order(late=late) for late in _LATE]
        if not self._shares_link:
            rate = int(_FASTER_LINK * self._bytes_per_s)
            orders += [self._waiting.order(rate, late) for late in _LATE_APART]
        return orders

    @property
    def soon_tried(self) -> list[tuple[OpId, ...]]:
        """Of jobs with large gradients, the orders that are tried where somebody waits, unlike each other."""
        return [*self.late[len(_LATE) // 2 : len(_LATE) + 1], next(self.usual())]

    @cached_property
    def _waiting(self) -> EarlyUpdates:
        least_nbytes = int(self._budget_nbytes * _LARGE_GRADIENT)
        return EarlyUpdates(self._request.graph, self._request.latencies_ns, least_nbytes)
