"""What a job asks of a device that it shares."""

from dataclasses import dataclass

from tensile_db.graph import StepGraph
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes, time_of_ops_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import UNBUDGETED, vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.shares import limit_of

#: Tensors up to this size are small, while together they are no more than this part of the state.
_SMALL_NBYTES = 8 * 1024
_MOST_SMALL = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a job asks of a device; sizes in bytes."""

    job_id: int
    #: Parameters, buffers, optimizer state.
    state_nbytes: int
    #: No plan of it holds less.
    least_nbytes: int
    #: It has no use for more.
    wanted_nbytes: int
    #: Its ops alone.
    time_ns: int
    #: The share of that time in which it keeps the device busy, above 0 and up to 1.
    busy: float
    #: Of the state, the small tensors: a copy of one takes longer than its bytes do, so where states are
    #: moved ahead, these stay.
    small_nbytes: int = 0
    #: Of a job that serves a model, for how long nobody has asked for it; None: of other jobs.
    unused_ns: int | None = None


def demand_of(job: JobRequest, device: DeviceSpec) -> Demand:
    """Return what a job asks of this device."""
    limit_nbytes = limit_of(job, device.memory_nbytes)
    if job.policy in UNBUDGETED:
        # What its plan needs cannot be bargained with.
        (plan,) = plan_jobs([job], device)
        least_nbytes = wanted_nbytes = plan.budget_nbytes
    else:
        # Where even its bound exceeds the limit, its ops are split to meet that.
        least_nbytes = min(lower_bound_peak_nbytes(job.graph), limit_nbytes)
        wanted_nbytes = max(least_nbytes, min(vanilla.peak_nbytes(job.graph), limit_nbytes))
    time_ns = time_of_ops_ns(job.latencies_ns)
    launching_ns = min(time_ns, len(job.graph.ops) * device.op_overhead_ns)
    return Demand(
        job_id=job.job_id,
        state_nbytes=job.graph.state_nbytes,
        least_nbytes=least_nbytes,
        wanted_nbytes=wanted_nbytes,
        time_ns=time_ns,
        # Between small ops the device has nothing to do.
        busy=max(0.01, 1 - launching_ns / max(1, time_ns)),
        unused_ns=job.unused_ns,
        small_nbytes=_small_nbytes(job.graph),
    )


def _small_nbytes(graph: StepGraph) -> int:
    """Return what the small tensors of a graph's state are together, the smallest first, in bytes."""
    sizes = sorted(tensor.nbytes for tensor in graph.tensors if tensor.persistent)
    small_nbytes = 0
    for nbytes in sizes:
        if nbytes > _SMALL_NBYTES or small_nbytes + nbytes > graph.state_nbytes // _MOST_SMALL:
            break
        small_nbytes += nbytes
    return small_nbytes
