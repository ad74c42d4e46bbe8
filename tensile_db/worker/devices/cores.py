"""How fast this machine's cores are, measured in under a second for the roofline predictor.

Source: Williams, Waterman, Patterson: Roofline (2009).
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The device's part of a roofline."""

    flops_per_s: int
    memory_bytes_per_s: int
    #: Fixed cost of an op, whatever its size.
    op_overhead_ns: int
    #: At which one core copies.
    copying_bytes_per_s: int


#: A common desktop's; where predictions do not matter.
NOMINAL = Rates(
    flops_per_s=100_000_000_000,
    memory_bytes_per_s=10_000_000_000,
    op_overhead_ns=5_000,
    copying_bytes_per_s=8_000_000_000,
)

#: Each of the four measurements ends after this long, at the latest one run later.
_PATIENCE_NS = 200_000_000


def calibrate(threads: int) -> Rates:
    """Measure with `threads` kernel threads, which the calling thread keeps; takes under a second."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        # The shapes of a convolution in the middle of a residual network.
        images, kernels = torch.randn(8, 64, 56, 56), torch.randn(64, 64, 3, 3)
        convolution_ns = _fastest_ns(lambda: torch.conv2d(images, kernels, padding=1))
        flops = 2 * 8 * 64 * 56 * 56 * 64 * 9
        # Larger than the caches.
        source, target = torch.zeros(16_000_000), torch.zeros(16_000_000)
        copying_ns = _fastest_ns(lambda: target.copy_(source))
        # As the link's threads do.
        by_one_ns = _fastest_ns(lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes))
        scalar = torch.zeros(1)
        overhead_ns = _fastest_ns(lambda: torch.neg(scalar))
    return Rates(
        flops_per_s=flops * 1_000_000_000 // convolution_ns,
        memory_bytes_per_s=2 * source.nbytes * 1_000_000_000 // copying_ns,
        op_overhead_ns=overhead_ns,
        copying_bytes_per_s=source.nbytes * 1_000_000_000 // by_one_ns,
    )


def _fastest_ns(run: Callable[[], object]) -> int:
    """Return the shortest of several runs: what disturbs a run only makes it longer."""
    run()
    fastest_ns, until_ns = 0, time.perf_counter_ns() + _PATIENCE_NS
    for _ in range(1000):
        begin_ns = time.perf_counter_ns()
        run()
        end_ns = time.perf_counter_ns()
        fastest_ns = min(fastest_ns or end_ns - begin_ns, end_ns - begin_ns)
        if end_ns > until_ns:
            break
    return max(1, fastest_ns)
