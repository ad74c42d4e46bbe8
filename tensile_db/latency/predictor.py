"""Op latencies before a job has ever run: by a learned model where one knows the op, else by a roofline.

A kind's roofline is scaled by what its measured ops took over what the roofline says; kinds of which nothing
was measured get the median of the others' scales.  Without any measurement it is the roofline as it is.

Source: TENSILE section IV-A.  At run time the moving averages take over (ewma.py).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tensile_db.latency.features import OpFeatures
from tensile_db.latency.model import LatencyModel
from tensile_db.latency.roofline import roofline_ns
from tensile_db.latency.samples import LatencySample
from tensile_db.scheduler.plan import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KindModel:
    """What is known of one kind of op on some hardware."""

    #: None where too few shapes were measured.
    network: LatencyModel | None
    #: Measured latency over the roofline's, the median of its samples on the idle device.
    roofline_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Latencies of a step's ops."""

    #: By op id; each is at least 1.
    latencies_ns: tuple[int, ...]
    #: How many of them come from a learned model; the others from a roofline.
    learned_count: int


def predict(
    ops: Sequence[OpFeatures], models: Mapping[str, KindModel], device: DeviceSpec, *, utilization: float
) -> Predicted:
    """Return the predicted latency of each op.

    models: by kind; utilization: of the device by others, 0 to 1.
    """
    # Networks repeat themselves: each distinct op is predicted once.
    by_kind: dict[str, dict[OpFeatures, int]] = defaultdict(dict)
    for op in ops:
        by_kind[op.kind][op] = 0
    learned: set[OpFeatures] = set()
    usual_scale = median(model.roofline_scale for model in models.values()) if models else 1.0
    for kind, distinct in by_kind.items():
        model = models.get(kind)
        scale = usual_scale if model is None else model.roofline_scale
        for op in distinct:
            distinct[op] = max(1, round(scale * roofline_ns(op.flops, op.moved_nbytes, device)))
        if model is not None and model.network is not None:
            covered = model.network.covers(list(distinct), utilization)
            known = [op for op, inside in zip(distinct, covered, strict=True) if inside]
            distinct |= zip(known, model.network.predict_ns(known, utilization), strict=True)
            learned |= set(known)
    return Predicted(
        latencies_ns=tuple(by_kind[op.kind][op] for op in ops),
        learned_count=sum(op in learned for op in ops),
    )


def roofline_scale(samples: Sequence[LatencySample], device: DeviceSpec) -> float:
    """Return measured latency over the roofline's, the median of samples of one kind, the idlest ones."""
    idlest = min(sample.utilization for sample in samples)
    return median(
        sample.latency_ns / roofline_ns(sample.features.flops, sample.features.moved_nbytes, device)
        for sample in samples
        if sample.utilization == idlest
    )
