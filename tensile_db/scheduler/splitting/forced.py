"""What has to be split so that each op alone gets by with a job's memory.

It depends on graph, device and memory alone: not on what was measured, nor on what else runs.  Split sums are
rounded otherwise, and a job's results are its own.

Source: ours.
"""

from dataclasses import replace

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import DeviceSpec, Split
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.splitting.choice import Splitter

#: Arithmetic that takes as long as moving a byte, on any device, where only ops are compared.
_FLOPS_OF_A_BYTE = 32


def forced_splits(
    request: JobRequest, device: DeviceSpec, limit_nbytes: int
) -> tuple[tuple[Split, ...], int]:
    """Return the splits with which no op needs more than the limit, and the most that one needs then.

    Where there are none: those that come closest.
    """
    needed_nbytes = lower_bound_peak_nbytes(request.graph)
    if needed_nbytes <= limit_nbytes:
        return (), needed_nbytes
    by_size = tuple(1 + op.flops // _FLOPS_OF_A_BYTE + op.moved_nbytes for op in request.graph.ops)
    # A worker measures its device's rates anew whenever it starts.
    nominal = replace(
        device, flops_per_s=_FLOPS_OF_A_BYTE * 10**9, memory_bytes_per_s=10**9, op_overhead_ns=1
    )
    return Splitter(replace(request, latencies_ns=by_size), nominal).splits_within(limit_nbytes)
