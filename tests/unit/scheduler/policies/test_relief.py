"""Stalls are taken out of a plan change by change, each by what the plan's own timeline says."""

from dataclasses import replace

import pytest
from hypothesis import event, given

from tensile_db.graph import Phase, Role
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies.alone import plan_one
from tensile_db.scheduler.policies.drafts import Drafter
from tensile_db.scheduler.policies.relief import Relief
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble
from tensile_db.scheduler.simulation import TooSlow
from tensile_db.scheduler.timeline import simulate_settled
from tests.examples import examples
from tests.graphs.hand_made import device_of, graph_of
from tests.plans.drafted_jobs import drafted, stalling_jobs
from tests.plans.replayed_plans import timeline_of

FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
INPUT, LARGE, SMALL, GRADIENT, MIDDLE, OTHER = range(6)
#: At ops 3 and 4 MIDDLE is there; LARGE must be away then, and SMALL during op 4.  A byte takes a nanosecond.
STEP = graph_of(
    [
        (1_000, Role.INPUT),
        (100_000, Role.ACTIVATION),
        (10_000, Role.ACTIVATION),
        (10_000, Role.GRADIENT),
        (105_000, Role.ACTIVATION),
        (100_000, Role.ACTIVATION),
    ],
    [
        ("tensile.load_batch", FORWARD, [], [INPUT], False),
        ("layer", FORWARD, [INPUT], [LARGE, OTHER], False),
        ("layer", FORWARD, [LARGE], [SMALL], False),
        ("layer", FORWARD, [SMALL], [MIDDLE], False),
        ("loss", FORWARD, [MIDDLE], [GRADIENT], False),
        ("layer_backward", BACKWARD, [GRADIENT], [GRADIENT], False),
        ("layer_backward", BACKWARD, [SMALL, GRADIENT], [GRADIENT], False),
        ("layer_backward", BACKWARD, [GRADIENT], [GRADIENT], False),
        ("layer_backward", BACKWARD, [LARGE, OTHER, GRADIENT], [GRADIENT], False),
        ("tensile.report", OPTIMIZER, [GRADIENT], [], False),
    ],
)
LATENCIES_NS = (10, 10, 150_000, 10, 10, 20_000, 10, 200_000, 10, 10)
BUDGET_NBYTES = 121_000
DEVICE = device_of(10 * BUDGET_NBYTES)
#: OTHER may leave while op 2 runs and need not be there before op 8; LARGE makes op 3 wait for its copy.
OTHER_AWAY = Absence(gap=Residency(STEP, LATENCIES_NS).gap_at(OTHER, 4), begin=2, end=7, out_position=1)
LARGE_AWAY = Absence(gap=Residency(STEP, LATENCIES_NS).gap_at(LARGE, 4), begin=3, end=5, out_position=2)
SMALL_AWAY = Absence(gap=Residency(STEP, LATENCIES_NS).gap_at(SMALL, 4), begin=4, end=5, out_position=3)
#: What LARGE leaving takes before op 3, and SMALL before op 4.
LEAVING_NS = 100_000 + 10_000
#: The same step, in which OTHER takes no memory.
WITHOUT_OTHER = replace(
    STEP,
    tensors=tuple(replace(each, nbytes=0) if each.id == OTHER else each for each in STEP.tensors),
)


def _relieved(absences, budget_nbytes=BUDGET_NBYTES, step=WITHOUT_OTHER):
    """Return the periods of a plan before and after relief, and the absences after it."""
    residency = Residency(step, LATENCIES_NS)
    for absence in absences:
        residency.add(absence)

    def settle(plan, *, first_within_ns=None):
        return simulate_settled(step, LATENCIES_NS, plan, DEVICE, first_within_ns=first_within_ns)

    _, before = settle(assemble(residency, "auto"))
    relief = Relief(residency, Link(DEVICE), settle, budget_nbytes)
    plan, timeline = relief.relieve(1)
    assert timeline_of(step, LATENCIES_NS, plan, DEVICE).period_ns == timeline.period_ns
    assert lower(step, plan).guaranteed_peak_nbytes <= budget_nbytes
    left = {tensor: held[0] for tensor, held in residency.absences.items() if held}
    return before.period_ns, timeline.period_ns, left


def test_what_an_op_waits_for_passes_what_is_needed_later():
    before_ns, after_ns, left = _relieved([LARGE_AWAY, SMALL_AWAY])
    # LARGE takes 100,000 ns before SMALL comes back, op 5 only 20,000 of these.
    assert before_ns == sum(LATENCIES_NS) + LEAVING_NS + 90_000
    assert after_ns == sum(LATENCIES_NS) + LEAVING_NS
    assert (left[LARGE].end, left[LARGE].in_delta_ns) > (left[SMALL].end, left[SMALL].in_delta_ns)


def test_what_an_op_waits_for_comes_back_as_early_as_there_is_room():
    late = [replace(LARGE_AWAY, end=7), replace(SMALL_AWAY, end=6)]
    before_ns, after_ns, left = _relieved(late)
    assert before_ns == sum(LATENCIES_NS) + LEAVING_NS + 10_000
    assert after_ns == sum(LATENCIES_NS) + LEAVING_NS
    assert left[SMALL].end == 5


def test_what_an_op_waits_for_leaves_as_early_as_it_can():
    late = [replace(LARGE_AWAY, out_delta_ns=5_000, end=7), SMALL_AWAY]
    before_ns, after_ns, left = _relieved(late)
    assert before_ns == sum(LATENCIES_NS) + LEAVING_NS + 5_000
    assert after_ns == sum(LATENCIES_NS) + LEAVING_NS
    assert left[LARGE].out_delta_ns == 0


def test_what_an_op_waits_for_stays_where_another_leaves_without_waiting():
    budget_nbytes = BUDGET_NBYTES + 100_000
    before_ns, after_ns, left = _relieved([replace(LARGE_AWAY, end=7), SMALL_AWAY], budget_nbytes, STEP)
    assert before_ns == sum(LATENCIES_NS) + LEAVING_NS
    assert after_ns == sum(LATENCIES_NS) + 10_000
    assert left.keys() == {OTHER, SMALL}


def test_what_need_not_leave_stays():
    before_ns, after_ns, left = _relieved([OTHER_AWAY, LARGE_AWAY, SMALL_AWAY], 10 * BUDGET_NBYTES, STEP)
    assert before_ns > after_ns == sum(LATENCIES_NS)
    assert not left


def test_a_change_that_takes_longer_is_not_simulated_to_its_end():
    residency = Residency(WITHOUT_OTHER, LATENCIES_NS)
    residency.add(LARGE_AWAY)
    plan = assemble(residency, "auto")
    _, whole = simulate_settled(WITHOUT_OTHER, LATENCIES_NS, plan, DEVICE)
    assert whole.first_ns == whole.period_ns > sum(LATENCIES_NS)
    # Of a copy of the graph nothing is known.
    copy = replace(WITHOUT_OTHER)
    with pytest.raises(TooSlow):
        simulate_settled(copy, LATENCIES_NS, plan, DEVICE, first_within_ns=whole.first_ns - 1)
    _, within = simulate_settled(copy, LATENCIES_NS, plan, DEVICE, first_within_ns=whole.first_ns)
    assert within.period_ns == whole.period_ns


@pytest.mark.parametrize("hurried", [True, False])
def test_a_plan_that_stalls_is_relieved_where_nobody_waits(monkeypatch, hurried):
    relieved, relieve = [], Drafter.relieved
    monkeypatch.setattr(
        Drafter,
        "relieved",
        lambda self, *given, **how: relieved.append(given) or relieve(self, *given, **how),
    )
    job = JobRequest(job_id=1, graph=WITHOUT_OTHER, latencies_ns=LATENCIES_NS, hurried=hurried)
    plan = plan_one(job, DEVICE, BUDGET_NBYTES, 1)
    assert timeline_of(WITHOUT_OTHER, LATENCIES_NS, plan, DEVICE).period_ns > 1.1 * sum(LATENCIES_NS)
    assert bool(relieved) != hurried


@pytest.mark.slow
@given(stalling_jobs())
@examples(150)
def test_a_relieved_plan_takes_no_longer_keeps_the_budget_and_is_the_same_again(tight):
    job, device, budget_nbytes = tight
    made = []
    for _ in range(2):
        drafter, before = drafted(job, device, budget_nbytes)
        made.append((before, drafter.relieved(before)))
    (before, relieved), (_, again) = made
    assert relieved.plan == again.plan
    assert relieved.period_ns <= before.period_ns
    event("less time" if relieved.period_ns < before.period_ns else "as much time")
    timeline_of(job.graph, job.latencies_ns, relieved.plan, device)
    assert lower(job.graph, relieved.plan).guaranteed_peak_nbytes <= budget_nbytes
