"""Whose turn is next: the policies by which jobs share a device, each an order of those who ask.

    fifo   the job that came first; nobody else is let in while it runs
    srtf   the one with the least time left, predicted from its plan: short jobs pass long ones, which go on
           where they were
    pack   every job in a lane of its own while memory lasts; in a lane, the one that came first
    fair   the one that has had the least of the device's time
    auto   as fair, in as many lanes as keep the device busy (`laning.py`)

A job that serves a model goes first, then one of higher priority.  Under fair and auto nobody starves: a
step of priority doubles a job's part of the time instead, and who serves is first while it has had little.

Source: Salus section 4.
Differs: Salus' PACK leaves the turns of a lane open, and its FAIR has no priorities.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Beyond it, a priority makes no further difference to a job's part of the time.
_MOST_DOUBLINGS = 10


@dataclass(slots=True, kw_only=True)
class Standing:
    """What an order knows of a job; times in ns."""

    #: Counts arrivals.
    number: int
    priority: int
    #: It serves a model, and somebody waits whenever it asks.
    serves: bool = False
    #: Of the device's time, what the job has had, and what those had who were there before it.
    served_ns: int = 0
    #: Predicted, until its end.
    left_ns: int = 0


#: Who has the smallest goes first.
Key = Callable[[Standing], tuple[int | float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPolicy:
    """How jobs share a device."""

    key: Key
    #: How many lanes there may be; None: as many as there are jobs; 0: as the plans say.
    lanes: int | None
    #: Only one job at a time is let in.
    alone: bool = False


def part_of_time(priority: int) -> float:
    """Return the weight of a job's claim to the device's time, 1 for priority 0."""
    return float(2 ** max(-_MOST_DOUBLINGS, min(_MOST_DOUBLINGS, priority)))


def _first_come(job: Standing) -> tuple[int | float, ...]:
    return (not job.serves, -job.priority, job.number)


def _least_left(job: Standing) -> tuple[int | float, ...]:
    return (not job.serves, -job.priority, job.left_ns, job.number)


def _least_served(job: Standing) -> tuple[int | float, ...]:
    return (job.served_ns / part_of_time(job.priority), job.number)


SHARING_POLICIES: Mapping[str, SharingPolicy] = MappingProxyType(
    {
        "auto": SharingPolicy(key=_least_served, lanes=0),
        "fair": SharingPolicy(key=_least_served, lanes=1),
        "fifo": SharingPolicy(key=_first_come, lanes=1, alone=True),
        "pack": SharingPolicy(key=_first_come, lanes=None),
        "srtf": SharingPolicy(key=_least_left, lanes=1),
    }
)
