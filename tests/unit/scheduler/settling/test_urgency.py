"""Copies back that an op waits for pass others that have time, and waits stand before recomputation."""

import pytest

from tensile_db.graph import Phase, Role
from tensile_db.scheduler.analysis.changes import Changes
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Plan, Recompute, Release, SwapIn, SwapOut, Wait
from tensile_db.scheduler.program import Await, Compute
from tensile_db.scheduler.settling.assemble import assemble
from tensile_db.scheduler.settling.urgency import let_urgent_pass
from tensile_db.scheduler.timeline import settle
from tests.graphs.hand_made import device_of, graph_of
from tests.plans.replayed_plans import timeline_of

FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
INPUT, LARGE, SMALL, GRADIENT = range(4)
DEVICE = device_of(100_000)

STEP = graph_of(
    [(10, Role.INPUT), (1000, Role.ACTIVATION), (100, Role.ACTIVATION), (10, Role.GRADIENT)],
    [
        ("tensile.load_batch", FORWARD, [], [INPUT], False),
        ("layer", FORWARD, [INPUT], [LARGE], True),
        ("layer", FORWARD, [LARGE], [SMALL], True),
        ("layer", FORWARD, [SMALL], [GRADIENT], True),
        ("layer_backward", BACKWARD, [GRADIENT], [GRADIENT], False),
        ("layer_backward", BACKWARD, [SMALL, GRADIENT], [GRADIENT], False),
        ("layer_backward", BACKWARD, [GRADIENT], [GRADIENT], False),
        ("layer_backward", BACKWARD, [LARGE, GRADIENT], [GRADIENT], False),
        ("tensile.report", OPTIMIZER, [INPUT, GRADIENT], [], False),
    ],
)


def _absent(residency, tensor, end):
    """Take a tensor off between its last access going forward and its first one going back."""
    gap = residency.gap_at(tensor, 4)
    residency.add(Absence(gap=gap, begin=end, end=end, out_position=gap.previous))


def _timed(residency, latencies_ns):
    plan = settle(STEP, latencies_ns, assemble(residency, "test"), DEVICE)
    return timeline_of(STEP, latencies_ns, plan, DEVICE)


def test_what_an_op_waits_for_passes_what_has_time():
    latencies_ns = (10, 10, 1000, 1000, 200, 10, 2000, 10, 10)
    residency = Residency(STEP, latencies_ns)
    _absent(residency, LARGE, end=4)
    _absent(residency, SMALL, end=5)
    before = _timed(residency, latencies_ns)
    # The large one is under way for 1000 ns when the small one is triggered, 200 ns later.
    assert before.period_ns == sum(latencies_ns) + 900
    assert let_urgent_pass(Changes(residency), before, least_ns=10)
    after = _timed(residency, latencies_ns)
    assert after.period_ns == sum(latencies_ns) + 100
    assert not let_urgent_pass(Changes(residency), after, least_ns=10)


@pytest.mark.parametrize(("latency_ns", "least_ns"), [(10, 900), (2000, 10)])
def test_waits_that_are_short_or_for_what_comes_first_anyway_are_left(latency_ns, least_ns):
    latencies_ns = (10, 10, 1000, 1000, 200 if latency_ns < 100 else 1200, latency_ns, 2000, 10, 10)
    residency = Residency(STEP, latencies_ns)
    _absent(residency, LARGE, end=4)
    _absent(residency, SMALL, end=5)
    before = _timed(residency, latencies_ns)
    absences = {tensor: list(held) for tensor, held in residency.absences.items()}
    assert not let_urgent_pass(Changes(residency), before, least_ns=least_ns)
    assert residency.absences == absences


#: With an activation (500 B) that is made again while another (1000 B) is away.
STEP_AGAIN = graph_of(
    [(10, Role.INPUT), (500, Role.ACTIVATION), (1000, Role.ACTIVATION), (10, Role.GRADIENT)],
    [
        ("tensile.load_batch", FORWARD, [], [INPUT], False),
        ("layer", FORWARD, [INPUT], [1], True),
        ("layer", FORWARD, [INPUT], [2], True),
        ("layer", FORWARD, [1, 2], [GRADIENT], True),
        ("layer_backward", BACKWARD, [1, GRADIENT], [GRADIENT], False),
        ("layer_backward", BACKWARD, [GRADIENT], [GRADIENT], False),
        ("layer_backward", BACKWARD, [2, GRADIENT], [GRADIENT], False),
        ("tensile.report", OPTIMIZER, [INPUT, GRADIENT], [], False),
    ],
)


def test_a_wait_stands_before_what_is_recomputed_before_its_op():
    latencies_ns = (10, 10, 10, 10, 10, 2000, 10, 10)
    plan = Plan(
        policy="test",
        order=tuple(range(8)),
        events=(
            SwapOut(tensor=2, trigger_op=3, delta_ns=0),
            SwapIn(tensor=2, trigger_op=4, delta_ns=0),
            Release(tensor=1, after_op=3),
            Wait(tensor=2, before_op=4),
            Recompute(tensor=1, before_op=4, ops=(1,)),
            Release(tensor=1, after_op=4),
            Release(tensor=2, after_op=6),
            Release(tensor=INPUT, after_op=7),
            Release(tensor=GRADIENT, after_op=7),
        ),
    )
    timeline = timeline_of(STEP_AGAIN, latencies_ns, plan, DEVICE)
    (again,) = [span for span in timeline.ops if span.recompute]
    (left,) = [copy for copy in timeline.copies if copy.to_host]
    assert again.begin_ns == left.end_ns
    assert timeline.begins_with_recomputation_ns()[4] == again.begin_ns
    # So both are never there at once but when the graph has them so.
    program = lower(STEP_AGAIN, plan)
    assert program.guaranteed_peak_nbytes == timeline.peak_nbytes == 1520
    steps = program.instructions
    assert steps.index(Await(tensor=2)) < steps.index(Compute(op=1, recompute=True))
