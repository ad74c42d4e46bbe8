"""Which iterations of a step have the latencies of their ops sampled.

One that is sampled among replayed ones is run op by op, may need the memory of what is replayed, and takes
as long as several: the device is held back for its sake, and memory beside the recording's is taken anew.  So
the time until the next one doubles, as long as the plan stays.

Source: ours.
"""

#: Counted from the step's start here: the first ones touch memory for the first time and are left out, the
#: next ones replace predictions soon.
_EARLY = (3, 4, 5)
#: Of iterations op by op, every so many.
_EVERY = 10
#: Replayed ones until the first one that is sampled by a plan, and at most until another one.
_REPLAYED_FIRST, _REPLAYED_MOST = 300, 4800


class Sampling:
    """Of one step."""

    def __init__(self) -> None:
        """None has run."""
        self._runs = 0
        self._replayed = 0
        self._apart = _REPLAYED_FIRST

    def planned(self) -> None:
        """Begin anew: another plan was taken up."""
        self._replayed, self._apart = 0, _REPLAYED_FIRST

    def soon(self) -> None:
        """Have the next one come as soon as behind a new plan: latencies have changed."""
        self._apart = _REPLAYED_FIRST

    def count(self, *, replaying: bool) -> bool:
        """Count an iteration that begins; return whether it is to be sampled.

        replaying: else it would be replayed.
        """
        self._runs += 1
        if self._runs in _EARLY:
            return True
        if not replaying:
            return self._runs % _EVERY == 0
        self._replayed += 1
        if self._replayed < self._apart:
            return False
        self._replayed, self._apart = 0, min(2 * self._apart, _REPLAYED_MOST)
        return True
