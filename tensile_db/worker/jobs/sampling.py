"""Which iterations of a step have the latencies of their ops sampled.

One that is sampled among replayed ones is run op by op, may need the memory of what is replayed, which is
taken down again afterwards, and takes as long as several: the device is held back for its sake, and memory
beside the recording's is taken anew.  So the time until the next one doubles, as long as the plan stays, and
none comes before all of them, with what it is going to cost, are a hundredth of the time that has passed.

Source: ours.
"""

#: Counted from the step's start here: the first ones touch memory for the first time and are left out, the
#: next ones replace predictions soon.
_EARLY = (3, 4, 5)
#: Of iterations op by op, every so many.
_EVERY = 10
#: Replayed ones until the first one that is sampled by a plan, and at most until another one.
_REPLAYED_FIRST, _REPLAYED_MOST = 300, 4800
#: Of the time of all iterations, what samples among replayed ones may cost.
_SPENT_PART = 100


class Sampling:
    """Of one step."""

    def __init__(self) -> None:
        """None has run."""
        self._runs = 0
        self._replayed = 0
        self._apart = _REPLAYED_FIRST
        #: How long all iterations have taken, and how much of it samples among replayed ones have cost.
        self._passed_ns = self._spent_ns = 0
        #: How long the last sampled one took, and the last replayed one that came after one that was not.
        self._sampled_ns = self._resumed_ns = 0
        #: The least that a replayed one has taken by this plan.
        self._replayed_ns: int | None = None
        #: Whether the one that was counted last is sampled, and whether one among replayed ones was
        #: whose cost is not known yet.
        self._is_sampled = self._is_among_replayed = False
        #: Whether the next replayed one comes after one that was not.
        self._resumes = True

    def planned(self) -> None:
        """Begin anew: another plan was taken up."""
        self._replayed, self._apart = 0, _REPLAYED_FIRST
        self._replayed_ns = None

    def soon(self) -> None:
        """Have the next one come as soon as behind a new plan: latencies have changed."""
        self._apart = _REPLAYED_FIRST

    def count(self, *, replaying: bool) -> bool:
        """Count an iteration that begins; return whether it is to be sampled.

        replaying: else it would be replayed.
        """
        self._is_sampled = self._is_due(replaying=replaying)
        return self._is_sampled

    def took(self, elapsed_ns: int, *, replayed: bool) -> None:
        """Be told how long the iteration took that was counted last, with all that had to be done for it."""
        self._passed_ns += elapsed_ns
        if not replayed:
            self._resumes = True
            if self._is_sampled:
                self._sampled_ns = elapsed_ns
        elif self._resumes:
            self._resumes, self._resumed_ns = False, elapsed_ns
            if self._is_among_replayed:
                self._is_among_replayed = False
                self._spent_ns += self._cost_ns()
        else:
            self._replayed_ns = min(elapsed_ns, self._replayed_ns or elapsed_ns)

    def _is_due(self, *, replaying: bool) -> bool:
        self._runs += 1
        if self._runs in _EARLY:
            return True
        if not replaying:
            return self._runs % _EVERY == 0
        self._replayed += 1
        if self._replayed < self._apart:
            return False
        if (self._spent_ns + self._cost_ns()) * _SPENT_PART > self._passed_ns:
            return False
        self._replayed, self._apart = 0, min(2 * self._apart, _REPLAYED_MOST)
        self._is_among_replayed = True
        return True

    def _cost_ns(self) -> int:
        """Return by how much longer a sampled iteration and the next one take than two that are replayed.

        Before one was sampled among replayed ones it is what the early ones, and the first one that was
        replayed, took longer.
        """
        if self._replayed_ns is None:
            return 0
        return sum(max(0, each - self._replayed_ns) for each in (self._sampled_ns, self._resumed_ns))
