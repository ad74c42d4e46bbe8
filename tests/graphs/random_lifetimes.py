"""Lifetimes of large memory, drawn at random: in the order in which it is asked for, some of it together."""

from tensile_db.scheduler.sharing.addresses import Lifetime
from tensile_db.scheduler.sharing.growing_range import SMALL_NBYTES

#: Of the allocator's sizes.
GRANULE = 512


def random_lifetimes(random, count=40):
    """Return so many; some begin at once."""
    begins = sorted(2 * random.randrange(300) for _ in range(count))
    return [
        Lifetime(
            begin,
            begin + 2 * random.randrange(100) + 1,
            SMALL_NBYTES + GRANULE * random.randrange(1, 20_000),
        )
        for begin in begins
    ]
