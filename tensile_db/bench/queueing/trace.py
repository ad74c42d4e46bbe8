"""A trace like Salus': 100 jobs of its table 3 that come over half an hour.

Source: Salus section 5.1 and table 2.
Differs: Salus does not publish its trace.  Here networks and sizes are drawn evenly from its table 3, gaps
are exponential, and lengths lognormal, scaled to FIFO's makespan in its table 2.  Mean gap, spread and seed
are those of `CANDIDATES` whose FIFO queueing and 95 % completion time come closest to that row: no policy but
FIFO is looked at, for which lengths are enough.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

JOBS = 100
#: In s: of all jobs' ops.
LENGTH_S = 303.4 * 60
#: Mean gaps in s, the lengths' sigmas, seeds.
CANDIDATES = tuple(product((3.0, 6.0, 9.0, 12.0, 15.0, 18.0), (0.9, 1.2, 1.5, 1.8), range(59)))
CHOSEN = (18.0, 1.2, 33)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job of the trace."""

    #: As in table 3.
    name: str
    at_s: float
    #: Of its ops, were it alone.
    length_s: float


def draw(
    names: Sequence[str], *, gap_s: float = CHOSEN[0], sigma: float = CHOSEN[1], seed: int = CHOSEN[2]
) -> list[Arrival]:
    """Return the jobs in the order in which they come."""
    rng = random.Random(seed)  # a trace, not a secret
    drawn: list[tuple[str, float, float]] = []
    at_s = 0.0
    for _ in range(JOBS):
        drawn.append((rng.choice(names), at_s, rng.lognormvariate(0, sigma)))
        at_s += rng.expovariate(1 / gap_s)
    scale = LENGTH_S / sum(length for _, _, length in drawn)
    return [Arrival(name=name, at_s=begin_s, length_s=scale * length) for name, begin_s, length in drawn]
