"""Opens the asynchronous device on a late runtime."""

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.asynchronous import AsynchronousDevice
from tests.late_runtime import LateRuntime

GIB = 1 << 30


def open_late(schedule, *, memory_nbytes=GIB, duplex=True, can_record=False, tape_granule=1):
    spec = DeviceSpec(
        name="late",
        memory_nbytes=memory_nbytes,
        d2h_bytes_per_s=2_000_000_000,
        h2d_bytes_per_s=2_000_000_000,
        duplex=duplex,
        flops_per_s=100_000_000_000,
        memory_bytes_per_s=10_000_000_000,
        op_overhead_ns=5_000,
        replays=can_record,
    )
    runtime = LateRuntime(schedule, tape_granule=tape_granule)
    return runtime, AsynchronousDevice(runtime, spec, host_nbytes=GIB)
