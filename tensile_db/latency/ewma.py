"""Measured op latencies: their moving average, and how far they have left what the plan was made from.

    average' = average + (sample - average) / 4        drift = |s' - s| / s

s is the sum of the latencies that the plan was made from, s' the sum of the averages now.
Source: TENSILE section IV-E.  Differs: the paper gives no weight; a first sample replaces a mere prediction.
"""

from collections.abc import Sequence

#: A sample's weight is one part in this many.
SAMPLE_SHARE = 4


class LatencyAverage:
    """The latencies of one job's ops, ns by op id; changed by `sample` and `planned`."""

    def __init__(self, predicted_ns: Sequence[int]) -> None:
        self.predicted_ns = tuple(predicted_ns)
        self._average_ns = list(predicted_ns)
        self._latest_ns: list[int | None] = [None] * len(predicted_ns)
        self._planned_sum_ns = sum(predicted_ns)

    @property
    def average_ns(self) -> tuple[int, ...]:
        """The best estimates at present."""
        return tuple(self._average_ns)

    @property
    def latest_ns(self) -> tuple[int | None, ...]:
        """The newest sample of each op; None: never measured."""
        return tuple(self._latest_ns)

    def sample(self, measured_ns: Sequence[int | None]) -> None:
        """Take in one iteration's latencies, by op id; None where an op was not measured."""
        for op, sample_ns in enumerate(measured_ns):
            if sample_ns is None:
                continue
            if self._latest_ns[op] is None:
                self._average_ns[op] = sample_ns
            else:
                self._average_ns[op] += (sample_ns - self._average_ns[op]) // SAMPLE_SHARE
            self._latest_ns[op] = sample_ns

    def surprise(self) -> float:
        """Return how far the newest samples lie from the averages, which have them, as a share of these."""
        sampled = [
            (latest, average)
            for latest, average in zip(self._latest_ns, self._average_ns, strict=True)
            if latest is not None
        ]
        average_ns = sum(average for _, average in sampled)
        return abs(sum(latest for latest, _ in sampled) - average_ns) / max(average_ns, 1)

    def planned(self, latencies_ns: Sequence[int]) -> None:
        """Measure drift from the latencies that a new plan was made from."""
        self._planned_sum_ns = sum(latencies_ns)

    def drift(self) -> float:
        """Return |s' - s| / s."""
        return abs(sum(self._average_ns) - self._planned_sum_ns) / max(self._planned_sum_ns, 1)
