"""What every policy's plan must stand: it lowers, verifies, and the independent replay agrees with it."""

from collections.abc import Sequence

from hypothesis import currently_in_test_context, event

from tensile_db.graph import StepGraph
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec, Plan, Recompute, SwapOut
from tensile_db.scheduler.plan_json import plan_to_json
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.timeline import Timeline, simulate
from tests.plans.oracle import Replay, replay


def plan_and_replay(job: JobRequest, device: DeviceSpec) -> JobPlan:
    """Plan one job, replay the plan's JSON by the clock, and compare."""
    (made,) = plan_jobs([job], device)
    check_by_replay(job, made, device)
    return made


def check_by_replay(job: JobRequest, made: JobPlan, device: DeviceSpec) -> None:
    """Replay the JSON of a job's plan by the clock, and compare."""
    seen = replay_of(job, made, device)
    if currently_in_test_context():
        event("swaps" if any(isinstance(e, SwapOut) for e in made.plan.events) else "no swaps")
        event("recomputes" if any(isinstance(e, Recompute) for e in made.plan.events) else "no recomputation")
    assert seen.peak_nbytes == made.prediction.peak_nbytes
    assert seen.peak_nbytes <= made.prediction.guaranteed_peak_nbytes == made.budget_nbytes
    assert seen.period_ns == made.prediction.time_ns


def replay_of(job: JobRequest, made: JobPlan, device: DeviceSpec, iterations: int = 14) -> Replay:
    """Return what the clock saw of a plan, once its period repeats if there are enough iterations."""
    document = plan_to_json(job.graph, job.latencies_ns, device, made.plan, made.prediction, made.timeline)
    return replay(document, iterations=iterations)


def timeline_of(graph: StepGraph, latencies_ns: Sequence[int], plan: Plan, device: DeviceSpec) -> Timeline:
    """Return the timeline of a plan written by hand, which the clock agrees with."""
    timeline = simulate(graph, latencies_ns, plan, device)
    (made,) = plan_jobs([JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns)], device)
    seen = replay(plan_to_json(graph, latencies_ns, device, plan, made.prediction, timeline))
    assert (seen.period_ns, seen.peak_nbytes) == (timeline.period_ns, timeline.peak_nbytes)
    return timeline
