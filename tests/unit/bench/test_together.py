"""Several jobs on one simulated device: one job takes what the timeline says, several share fairly."""

import pytest

from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.passive_mode import iteration_ns
from tensile_db.bench.points import plan_one, subject
from tensile_db.bench.sharing import sweep
from tensile_db.bench.together import Arrival, Stage, run_together
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.plan import Rewriting

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

A6000 = machine("sim:a6000")
AS_CAPTURED = Rewriting()


@pytest.fixture(scope="module")
def unet(captures):
    return subject(captures.graph(workload("unet"), 4, "adam"), A6000)


@pytest.fixture(scope="module")
def in_parts(unet):
    """A plan in less memory than the largest op needs."""
    made = plan_one(unet, "tsplit", int(0.17 * unet.eager_peak_nbytes))
    assert made.plan.splits
    return made


def run(job, programs, *, iterations=3, at_ns=None, rewriting=AS_CAPTURED):
    at_ns = at_ns or [0] * len(programs)
    return run_together(
        [
            Arrival(graph=job.graph, latencies_ns=job.latencies_ns, at_ns=at, iterations=iterations)
            for at in at_ns
        ],
        [Stage(at_ns=0, programs=tuple(programs), rewritings={0: rewriting})],
        A6000,
    )


@pytest.mark.parametrize(
    ("policy", "share"),
    [("vanilla", None), ("vdnn_all", None), ("checkpoint", None), ("tensile", 0.5), ("tensile", 0.35)],
)
def test_one_job_takes_the_time_and_the_memory_that_are_predicted(unet, policy, share):
    budget = None if share is None else int(share * unet.eager_peak_nbytes)
    made = plan_one(unet, policy, budget)
    shorter, longer = (run(unet, [made.program], iterations=count) for count in (5, 6))
    period_ns = longer.makespan_ns - shorter.makespan_ns
    # The timeline lets copies run on into the next iteration, a program ends when they have.
    assert period_ns == pytest.approx(made.prediction.time_ns, rel=0.02)
    assert longer.device_peak_nbytes <= made.prediction.guaranteed_peak_nbytes
    assert longer.device_peak_nbytes == pytest.approx(made.prediction.peak_nbytes, rel=0.02)


def test_what_the_host_has_leaves_without_waiting_for_copies(captures):
    """Parameters leave at an iteration's end, too, so that going forward they need no copy."""
    job = subject(captures.graph(workload("resnet50"), 16, "adam"), A6000)
    made = plan_one(job, "auto", job.eager_peak_nbytes // 2)
    course = run(job, [made.program], rewriting=made.plan.rewriting)
    assert course.makespan_ns == 3 * made.prediction.time_ns


def test_a_job_that_runs_ops_in_parts_takes_the_time_and_the_memory_that_are_predicted(unet, in_parts):
    rewriting = in_parts.plan.rewriting
    shorter, longer = (
        run(unet, [in_parts.program], iterations=count, rewriting=rewriting) for count in (5, 6)
    )
    period_ns = longer.makespan_ns - shorter.makespan_ns
    # In so little memory the copies that run on into the next iteration are many.
    assert period_ns == pytest.approx(in_parts.prediction.time_ns, rel=0.05)
    assert longer.device_peak_nbytes == pytest.approx(in_parts.prediction.peak_nbytes, rel=0.02)


def test_a_job_goes_on_in_parts_and_whole_again_with_new_plans(unet, in_parts):
    whole = plan_one(unet, "tensile", int(0.3 * unet.eager_peak_nbytes))
    job = Arrival(graph=unet.graph, latencies_ns=unet.latencies_ns, at_ns=0, iterations=3)
    stages = [
        Stage(at_ns=0, programs=(whole.program,)),
        Stage(at_ns=1, programs=(in_parts.program,), rewritings={0: in_parts.plan.rewriting}),
        Stage(at_ns=int(1.5 * whole.prediction.time_ns), programs=(whole.program,)),
    ]
    course = run_together([job], stages, A6000)
    periods_ns = 2 * whole.prediction.time_ns + in_parts.prediction.time_ns
    assert course.makespan_ns == pytest.approx(periods_ns, rel=0.1)
    assert course.device_peak_nbytes <= whole.prediction.guaranteed_peak_nbytes


def test_eager_jobs_at_once_take_as_long_as_one_after_another(unet):
    program = plan_one(unet, "vanilla", None).program
    course = run(unet, [program] * 3)
    assert course.makespan_ns == 9 * unet.eager_ns
    assert course.peaks_nbytes == (unet.eager_peak_nbytes,) * 3
    assert course.device_peak_nbytes <= 3 * unet.eager_peak_nbytes


def test_a_job_computes_while_another_waits_for_copies(unet):
    program = plan_one(unet, "vdnn_all", None).program
    alone, both = run(unet, [program]), run(unet, [program] * 2)
    assert alone.makespan_ns < both.makespan_ns < 2 * alone.makespan_ns


def test_a_job_that_comes_late_is_done_late(unet):
    program = plan_one(unet, "vanilla", None).program
    course = run(unet, [program] * 2, at_ns=[0, 10 * unet.eager_ns])
    assert course.done_ns == (3 * unet.eager_ns, 13 * unet.eager_ns)
    assert course.device_peak_nbytes == unet.eager_peak_nbytes


def test_a_new_plan_is_taken_up_when_an_iteration_begins(unet):
    eager, swapping = (plan_one(unet, policy, None).program for policy in ("vanilla", "vdnn_all"))
    job = Arrival(graph=unet.graph, latencies_ns=unet.latencies_ns, at_ns=0, iterations=2)
    stages = [Stage(at_ns=0, programs=(eager,)), Stage(at_ns=1, programs=(swapping,))]
    course = run_together([job], stages, A6000)
    # The first iteration had begun when the second plan came.
    assert course.makespan_ns == unet.eager_ns + run(unet, [swapping], iterations=1).makespan_ns


def test_jobs_together_save_and_cost_what_their_plans_say(unet):
    (eager,) = sweep([unet] * 2, [0, 0], 2, "vanilla", A6000, (0.5,))
    assert (eager["msr"], eager["eor"]) == (0.0, 1.0)
    (half,) = sweep([unet] * 2, [0, 0], 2, "tensile", A6000, (0.5,))
    assert half["msr"] >= 0.5
    assert half["at_one_time_nbytes"] <= unet.eager_peak_nbytes


def test_passive_mode_costs_nothing_where_all_fits(unet):
    assert iteration_ns(unet.graph, unet.latencies_ns, A6000, unet.eager_peak_nbytes) == unet.eager_ns


def test_passive_mode_waits_for_every_copy(unet):
    half = iteration_ns(unet.graph, unet.latencies_ns, A6000, unet.eager_peak_nbytes // 2)
    planned = plan_one(unet, "tensile", unet.eager_peak_nbytes // 2).prediction.time_ns
    assert half > planned > unet.eager_ns


def test_passive_mode_needs_room_for_the_largest_op(unet):
    with pytest.raises(DoesNotFit):
        iteration_ns(unet.graph, unet.latencies_ns, A6000, unet.least_nbytes - 1)
