"""Which iterations of a step have the latencies of their ops sampled.

One that is sampled among replayed ones is run op by op, may need the memory of what is replayed, which is
taken down again afterwards, and takes as long as several: the device is held back for its sake, and memory
beside the recording's is taken anew.  So the time until the next one doubles, as long as the plan stays, and
none comes before all of them, with what it is going to cost, are at most a hundredth of the time of all
iterations.

Source: ours.
"""

from collections import deque

#: Counted from the step's start here: the first ones touch memory for the first time and are left out, the
#: next ones replace predictions soon.
_EARLY = (3, 4, 5)
#: Of iterations op by op, every so many.
_EVERY = 10
#: Replayed ones until the first one that is sampled by a plan, and at most until another one.
_REPLAYED_FIRST, _REPLAYED_MOST = 300, 4800
#: The time of all iterations over what samples among replayed ones may cost.
_PASSED_OVER_SPENT = 100
#: What is going to be spent is the least of what so many before took.
_LOOKED_BACK = 3


class Sampling:
    """Of one step."""

    def __init__(self) -> None:
        """None has run."""
        self._runs = 0
        self._replayed = 0
        self._apart = _REPLAYED_FIRST
        #: How long all iterations have taken, and how much of it samples among replayed ones have cost.
        self._passed_ns = self._spent_ns = 0
        #: How long the early sampled ones took, the last ones among replayed ones, and the last replayed ones
        #: that came after one that was not.
        self._early_ns: list[int] = []
        self._sampled_ns = deque[int](maxlen=_LOOKED_BACK)
        self._resumed_ns = deque[int](maxlen=_LOOKED_BACK)
        #: The least that a replayed one has taken by this plan.
        self._replayed_ns: int | None = None
        #: Whether the one that was counted last is sampled among replayed ones.
        self._is_among_replayed = False
        #: Whether what has to be taken down again is the last sample's doing.
        self._owes_resumption = False
        #: Whether the next replayed one comes after one that was not.
        self._resumes = True

    def planned(self) -> None:
        """Begin anew: another plan was taken up."""
        self._replayed, self._apart = 0, _REPLAYED_FIRST
        self._replayed_ns = None
        self._resumed_ns.clear()
        # This plan has to be taken down anyway.
        self._owes_resumption = False

    def soon(self) -> None:
        """Have the next one come as soon as behind a new plan: latencies have changed."""
        self._apart = _REPLAYED_FIRST

    def count(self, *, replaying: bool) -> bool:
        """Count an iteration that begins; return whether it is to be sampled.

        replaying: else it would be replayed.
        """
        self._runs += 1
        self._is_among_replayed = False
        if self._runs in _EARLY:
            return True
        if not replaying:
            return self._runs % _EVERY == 0
        self._replayed += 1
        self._is_among_replayed = self._is_due()
        if self._is_among_replayed:
            self._replayed, self._apart = 0, min(2 * self._apart, _REPLAYED_MOST)
        return self._is_among_replayed

    def took(self, elapsed_ns: int, *, replayed: bool) -> None:
        """Be told how long the iteration took that was counted last, with all that had to be done for it."""
        self._passed_ns += elapsed_ns
        if not replayed:
            self._resumes = True
            if self._is_among_replayed:
                self._sampled_ns.append(elapsed_ns)
                self._owes_resumption = True
            elif self._runs in _EARLY:
                self._early_ns.append(elapsed_ns)
            if self._owes_resumption:
                self._spent_ns += self._beyond_replayed_ns(elapsed_ns)
        elif self._resumes:
            self._resumes = False
            self._resumed_ns.append(elapsed_ns)
            if self._owes_resumption:
                self._owes_resumption = False
                self._spent_ns += self._beyond_replayed_ns(elapsed_ns)
        else:
            self._replayed_ns = min(elapsed_ns, self._replayed_ns or elapsed_ns)

    def _is_due(self) -> bool:
        if self._replayed < self._apart:
            return False
        # One that was held up tells nothing of the next.
        likely_ns = [
            min(took_ns) for took_ns in (self._sampled_ns or self._early_ns, self._resumed_ns) if took_ns
        ]
        cost_ns = sum(map(self._beyond_replayed_ns, likely_ns))
        return (self._spent_ns + cost_ns) * _PASSED_OVER_SPENT <= self._passed_ns

    def _beyond_replayed_ns(self, elapsed_ns: int) -> int:
        """Return by how much longer that is than a replayed iteration; 0 where none was seen yet."""
        return 0 if self._replayed_ns is None else max(0, elapsed_ns - self._replayed_ns)
