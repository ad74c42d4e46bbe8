"""Opens the asynchronous device on a late runtime, and runs the small step there with replay."""

from dataclasses import dataclass, field

from tensile_db.capture.networks.randomness import DEFAULT_GENERATOR_LOCK
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.asynchronous import AsynchronousDevice
from tensile_db.worker.execution.executor import Executor
from tests.late.runtime import LateRuntime
from tests.late.step import late_step
from tests.steps import small_step as s
from tests.steps.small_runs import open_memory, train

GIB = 1 << 30
#: A budget with room for an iteration beside the recording of one.
AMPLE = 1 << 28


def open_late(
    schedule,
    *,
    memory_nbytes=GIB,
    duplex=True,
    can_record=False,
    steers=False,
    tape_granule=1,
    **of_runtime,
):
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
        steers=steers,
    )
    runtime = LateRuntime(schedule, tape_granule=tape_granule, **of_runtime)
    device = AsynchronousDevice(runtime, spec, host_nbytes=GIB)
    # A GPU's calls take no lock to hand a kernel over; a late runtime's take this one.
    device._float32._lock = DEFAULT_GENERATOR_LOCK
    return runtime, device


def late_spec(**options):
    """Return the spec of a device as `open_late` opens it, whose kernels run as late as they can."""
    _, device = open_late("lazy", **options)
    device.close()
    return device.spec


@dataclass
class Told:
    """What an executor says of replay."""

    said: list = field(default_factory=list)

    def __call__(self, what, detail):
        self.said.append((what, dict(detail)))


def small_run(schedule, make, iterations, *, budget_nbytes=AMPLE, step=None, tape_granule=1):
    """Train the small step by the program that `make` makes of it; return results, state, what was said."""
    runtime, device = open_late(schedule, can_record=True, tape_granule=tape_granule)
    step, told = step or s.small_step(), Told()
    with open_memory(device, budget_nbytes) as memory:
        executor = Executor(late_step(step, runtime), memory, tell=told)
        executor.adopt(make(step))
        results = train(executor, iterations)
        device.memory.validate()
        state = executor.state()
    assert (device.memory.used_nbytes, device.host.used_nbytes, runtime.open_tapes) == (0, 0, [])
    device.close()
    return results, state, told.said


def copy_at_once(self, runtime, compute, channel, source, target, after=None):
    """Give a copy to its channel that comes after no kernel: in place of StreamCopy.__init__."""
    runtime.copy(channel, source, target)
    self._runtime, self._compute, self._ended = runtime, compute, runtime.record(channel)
