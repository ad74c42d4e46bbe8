"""What a job asks of a device that it shares."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a job asks of a device; sizes in bytes."""

    job_id: int
    #: Parameters, buffers, optimizer state.
    state_nbytes: int
    #: No plan of it holds less.
    least_nbytes: int
    #: It has no use for more.
    wanted_nbytes: int
    #: Its ops alone.
    time_ns: int
    #: The share of that time in which it keeps the device busy, above 0 and up to 1.
    busy: float
    #: Of the state, the small tensors: a copy of one takes longer than its bytes do, so where states are
    #: moved ahead, these stay.
    small_nbytes: int = 0
    #: Of a job that serves a model, for how long nobody has asked for it; None: of other jobs.
    unused_ns: int | None = None
