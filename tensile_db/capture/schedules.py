"""How a learning rate changes from update to update: it warms up, then it goes as its schedule says.

In a warm-up it grows by the same amount with each update, and the last one has all of it (Goyal et al.,
"Accurate, Large Minibatch SGD", 2017, section 2.2).  After that a "constant" one stays, a "linear" one falls
by the same amount with each update, and a "cosine" one as half a cosine does (Loshchilov and Hutter, "SGDR",
2017, equation 5, one period).  These fall towards 0, which the update after the last one would have.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tensile_db.errors import InvalidRequest, UnknownName

#: By name, what is left of the learning rate when a share of the updates after the warm-up has been made.
_SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda _done: 1.0,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "linear": lambda done: 1.0 - done,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateSchedule:
    """A schedule over a whole training; called with an update's number, from 1, it gives the rate's share."""

    #: "constant", "cosine" or "linear".
    name: str
    #: Of the first updates, those that are the warm-up.
    warmup_updates: int
    #: In all.
    updates: int

    def __call__(self, update: int) -> float:
        """Return the share of the learning rate that an update has, above 0 to 1."""
        if update <= self.warmup_updates:
            return update / self.warmup_updates
        return _SCHEDULES[self.name](
            (update - 1 - self.warmup_updates) / (self.updates - self.warmup_updates)
        )


def schedule_of(
    name: object, warmup_epochs: object, *, epochs: int, updates_per_epoch: int
) -> LearningRateSchedule | None:
    """Return the schedule of a training; None where its learning rate stays.

    name: None for a constant one.  warmup_epochs: a number, also of parts of one, None for none; rounded to
    whole updates.
    Raises UnknownName, InvalidRequest.
    """
    name = "constant" if name is None else name
    warmup_epochs = 0 if warmup_epochs is None else warmup_epochs
    if not isinstance(name, str) or name not in _SCHEDULES:
        raise UnknownName("learning rate schedule", str(name), _SCHEDULES)
    # A row may have come into the catalog past the functions.
    if (
        isinstance(warmup_epochs, bool)
        or not isinstance(warmup_epochs, int | float)
        or not 0 <= warmup_epochs <= epochs
    ):
        raise InvalidRequest(
            f'option "warmup_epochs" cannot be {warmup_epochs!r}',
            hint=f"It is a number from 0 to epochs, which is {epochs}.",
        )
    warmup_updates = round(warmup_epochs * updates_per_epoch)
    if name == "constant" and warmup_updates <= 1:
        # The first update has all of it.
        return None
    return LearningRateSchedule(name=name, warmup_updates=warmup_updates, updates=epochs * updates_per_epoch)
