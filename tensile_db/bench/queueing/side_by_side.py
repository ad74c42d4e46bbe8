"""Equal jobs without lanes: each planned into its part of the memory, all iterating at once.

The jobs are planned jointly (`scheduler/joint.py`) and share the device and the link op by op and copy by
copy (`bench/together.py`), as in `bench scale`, in the memory that the jobs of `bench sharing` have with
lanes.  `vanilla` is what plain threads of PyTorch do, in all the memory that they want.

Source: Salus section 5.4; TENSILE section V-D.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensile_db.bench.points import AMPLE_NBYTES, Subject
from tensile_db.bench.sharing import stages_of
from tensile_db.bench.together import Arrival, run_together
from tensile_db.errors import DoesNotFit, InvalidRequest
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import POLICIES, UNBUDGETED

#: What the project aims at with lanes, by jobs and memory: aggregate peak and makespan, both over eager's.
GOALS: Mapping[tuple[int, float], tuple[float, float]] = {
    (2, 0.45): (0.45, 1.03),
    (4, 0.28): (0.28, 1.05),
    (4, 0.25): (0.25, 1.15),
    (8, 0.2): (0.2, 1.10),
}
#: A plan by these, which split ops, takes up to half a minute for each job.
_SLOW = frozenset({"tsplit", "auto_split"})
PLANNED = tuple(policy for policy in POLICIES if policy not in _SLOW)


def run(
    subjects: Mapping[str, Subject],
    device: DeviceSpec,
    iterations: int,
    *,
    policies: Sequence[str] = PLANNED,
    tell: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Return a row for each network, case of `GOALS` and policy; subjects: by network."""
    rows = []
    for name, job in subjects.items():
        for policy in policies:
            made: dict[tuple[int, float | None], dict[str, Any]] = {}
            for count, share in GOALS:
                key = (count, None if policy in UNBUDGETED else share)
                if key not in made:
                    tell(f"{count} x {name} in {share:.0%}, without lanes: {policy}")
                    made[key] = side_by_side(job, count, share, policy, device, iterations)
                rows.append({"network": name, "jobs": count, "share": share, "policy": policy} | made[key])
    return rows


def side_by_side(
    job: Subject, count: int, share: float, policy: str, device: DeviceSpec, iterations: int
) -> dict[str, Any]:
    """Return peaks over the sum of the eager ones and the makespan over serial; else what would be needed.

    share: of the sum of the eager peaks; a policy that heeds no budget takes what it takes.
    """
    jobs, eager_nbytes = [job] * count, count * job.eager_peak_nbytes
    memory_nbytes = AMPLE_NBYTES if policy in UNBUDGETED else int(share * eager_nbytes)
    try:
        stages, held_nbytes, _ = stages_of(jobs, [0] * count, policy, device, memory_nbytes)
    except DoesNotFit as error:
        of_one = error.budget_nbytes < memory_nbytes or not _fits(job, policy, device, memory_nbytes)
        needed_nbytes = error.needed_nbytes * (count if of_one else 1)
        return {"needed": round(needed_nbytes / eager_nbytes, 4)}
    except InvalidRequest as error:
        return {"refused": error.message}
    arrivals = [
        Arrival(graph=job.graph, latencies_ns=job.latencies_ns, at_ns=0, iterations=iterations)
        for job in jobs
    ]
    course = run_together(arrivals, stages, device)
    return {
        "peak": round(held_nbytes / eager_nbytes, 4),
        "at_one_time": round(course.device_peak_nbytes / eager_nbytes, 4),
        "makespan": round(course.makespan_ns / iterations / count / job.eager_ns, 4),
    }


def _fits(job: Subject, policy: str, device: DeviceSpec, memory_nbytes: int) -> bool:
    """Return whether one job has a plan; where it has none, a refusal of several speaks of it alone."""
    try:
        stages_of([job], [0], policy, device, memory_nbytes)
    except DoesNotFit:
        return False
    return True
