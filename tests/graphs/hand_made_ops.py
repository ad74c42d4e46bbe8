"""Ops of a made-up kind whose latencies follow a known law, for tests of what learns them."""

from math import log2
from random import Random

from tensile_db.latency.features import OpFeatures
from tensile_db.latency.samples import LatencySample
from tensile_db.scheduler.plan import DeviceSpec

KIND = "aten.made_up.default"

DEVICE = DeviceSpec(
    name="a",
    memory_nbytes=1 << 30,
    d2h_bytes_per_s=10**9,
    h2d_bytes_per_s=10**9,
    duplex=True,
    flops_per_s=10**12,
    memory_bytes_per_s=4 * 10**9,
    op_overhead_ns=1000,
)


def made_up_op(rows, columns, stride=1, *, kind=KIND):
    """An op over a matrix."""
    return OpFeatures(
        kind=kind,
        names=("parameter.stride", "size.flops", "size.moved_nbytes", "size.self.0", "size.self.1"),
        values=(
            float(stride),
            log2(2 * rows * columns),
            log2(4 * rows * columns),
            log2(rows),
            log2(columns),
        ),
        flops=2 * rows * columns,
        moved_nbytes=4 * rows * columns,
    )


def lawful_ns(op, utilization):
    """2 us, and 3 ns an element over the stride, twice that on a busy device."""
    stride = op.values[0]
    return round((2000 + 3 * op.moved_nbytes / 4 / stride) * (1 + utilization))


def lawful_samples(count, *, seed=0, kind=KIND):
    """Samples of as many shapes, rows and columns from 1 to 1024, strides 1 and 2, idle and busy."""
    draw = Random(seed)
    samples = []
    for _ in range(count):
        rows, columns = (round(2 ** draw.uniform(0, 10)) for _ in range(2))
        op = made_up_op(rows, columns, draw.choice((1, 2)), kind=kind)
        samples += [
            LatencySample(features=op, utilization=load, latency_ns=lawful_ns(op, load))
            for load in (0.0, 1.0)
        ]
    return samples
