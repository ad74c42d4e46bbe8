"""Measured ops, as models learn from them."""

from dataclasses import dataclass

from tensile_db.latency.features import OpFeatures


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySample:
    """A measured op."""

    features: OpFeatures
    #: The share of the device's arithmetic that others asked for meanwhile, 0 to 1.
    utilization: float
    latency_ns: int
