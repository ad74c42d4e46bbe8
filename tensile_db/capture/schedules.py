"""How a learning rate changes from update to update: it warms up, then it goes as its schedule says.

In a warm-up it grows by the same amount with each update, and the last one has all of it.  After that a
"constant" one stays, a "linear" one falls by the same amount with each update, and a "cosine" one as half a
cosine does.  These fall towards 0, which the update after the last one would have.

Source: Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 2.2, gradual warm-up; Loshchilov and
Hutter, "SGDR" (ICLR 2017), equation 5, one period.
Differs: a warm-up begins with one update's part of the rate, not with the rate of a smaller batch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tensile_db.errors import UnknownName

#: By name, what is left of the learning rate when a share of the updates after the warm-up has been made.
_SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda _done: 1.0,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "linear": lambda done: 1.0 - done,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateSchedule:
    """A schedule over a whole training: a function from an update to its share of the learning rate."""

    #: "constant", "cosine" or "linear".
    name: str
    #: How many of the first updates are the warm-up; 0: none.
    warmup_updates: int
    #: In all, the warm-up's among them.
    updates: int

    def __call__(self, update: int) -> float:
        """Return the share of the learning rate, above 0 to 1, of an update, from 1 to `updates`."""
        if update <= self.warmup_updates:
            return update / self.warmup_updates
        return _SCHEDULES[self.name](
            (update - 1 - self.warmup_updates) / (self.updates - self.warmup_updates)
        )


def schedule_of(
    name: str, warmup_epochs: float, *, epochs: int, updates_per_epoch: int
) -> LearningRateSchedule | None:
    """Return the schedule of a training; None where its learning rate stays.

    warmup_epochs: at most epochs, also of parts of one; rounded to whole updates.
    Raises UnknownName.
    """
    if name not in _SCHEDULES:
        raise UnknownName("learning rate schedule", name, _SCHEDULES)
    assert 0 <= warmup_epochs <= epochs, "a warm-up is part of a training"
    warmup_updates = round(warmup_epochs * updates_per_epoch)
    if name == "constant" and warmup_updates <= 1:
        # The first update has all of it.
        return None
    return LearningRateSchedule(name=name, warmup_updates=warmup_updates, updates=epochs * updates_per_epoch)
