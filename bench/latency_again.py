"""How well a second measurement of the same ops on the same machine predicts the first one.

Both measurements have the machine's noise in them: of what the second one misses, a perfect model would miss
about half.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tensile_db.latency.samples import LatencySample
from tensile_db.latency.training import Errors, errors_between
from tensile_db.worker.latencies.measuring_process import Measured

#: Of a kind, below which the errors say nothing.
_LEAST_SAMPLES = 24


def errors_of_again(first: Iterable[Measured], again: Iterable[Measured]) -> Mapping[str, Errors]:
    """Return by kind of op how far a second measurement is from the first, over probes that both have."""
    of_probe = {measured.probe: measured.samples for measured in again}
    pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for measured in first:
        for one, other in _pairs(measured.samples, of_probe.get(measured.probe, ())):
            pairs[one.features.kind].append((other.latency_ns, one.latency_ns))
    return {
        kind: errors_between(*zip(*both, strict=True))
        for kind, both in pairs.items()
        if len(both) >= _LEAST_SAMPLES
    }


def _pairs(
    first: Sequence[LatencySample], again: Sequence[LatencySample]
) -> list[tuple[LatencySample, LatencySample]]:
    """Return the samples of one probe by twos, those of the same op beside as much load."""
    left: dict[tuple[object, ...], list[LatencySample]] = defaultdict(list)
    for sample in again:
        left[_what(sample)].append(sample)
    # Ops that are alike come in the same order each time.
    return [(sample, left[_what(sample)].pop(0)) for sample in first if left[_what(sample)]]


def _what(sample: LatencySample) -> tuple[object, ...]:
    return sample.features.kind, sample.features.values, sample.utilization
