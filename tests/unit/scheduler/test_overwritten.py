"""An op that overwrites what is still arriving waits for it: the copy would land on the new value."""

import pytest

from tensile_db.graph import Phase, Role
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Plan, Recompute, Release, SwapIn, SwapOut, Wait
from tensile_db.scheduler.program import Await, Compute
from tests.graphs.hand_made import device_of, graph_of
from tests.plans.replayed_plans import timeline_of

FORWARD, OPTIMIZER = Phase.FORWARD, Phase.OPTIMIZER
SCALE, INPUT, FIRST, SECOND = range(4)
LATENCIES_NS = (100, 100, 100, 100, 100)


def _step(*, recomputed_writes: list[int]):
    """Return a step whose last op overwrites a buffer of 1000 bytes unread."""
    return graph_of(
        [(1000, Role.BUFFER), (10, Role.INPUT), (10, Role.ACTIVATION), (10, Role.ACTIVATION)],
        [
            ("tensile.load_batch", FORWARD, [], [INPUT], False),
            ("layer", FORWARD, [INPUT], [FIRST, *recomputed_writes], True),
            ("layer", FORWARD, [FIRST], [SECOND], True),
            ("layer", FORWARD, [FIRST, SECOND], [SECOND], True),
            ("overwrite", OPTIMIZER, [SECOND], [SCALE], False),
        ],
    )


def _plan(*events):
    return Plan(
        policy="test",
        order=tuple(range(5)),
        events=(
            *events,
            SwapOut(tensor=SCALE, trigger_op=4, delta_ns=0),
            Release(tensor=INPUT, after_op=3),
            Release(tensor=FIRST, after_op=3),
            Release(tensor=SECOND, after_op=4),
            Wait(tensor=SCALE, before_op=None),
        ),
    )


@pytest.mark.parametrize("trigger_op", [2, 3])
def test_an_op_waits_for_what_it_overwrites_to_arrive(trigger_op):
    graph, plan = _step(recomputed_writes=[]), _plan(SwapIn(tensor=SCALE, trigger_op=trigger_op, delta_ns=0))
    arrives_ns = 100 * (trigger_op + 1) + 1000
    timeline = timeline_of(graph, LATENCIES_NS, plan, device_of(10_000))
    begins_ns, _ = timeline.op_times_ns()
    assert begins_ns.tolist() == [0, 100, 200, 300, arrives_ns]
    assert timeline.period_ns == arrives_ns + 100 + 1000
    program = lower(graph, plan).instructions
    assert program.index(Await(tensor=SCALE)) < program.index(Compute(op=4))


def test_a_second_run_waits_for_what_its_first_one_overwrote():
    graph = _step(recomputed_writes=[SCALE])
    plan = _plan(
        SwapIn(tensor=SCALE, trigger_op=None, delta_ns=0),
        SwapOut(tensor=SCALE, trigger_op=1, delta_ns=0),
        Wait(tensor=SCALE, before_op=2),
        Release(tensor=FIRST, after_op=2),
        SwapIn(tensor=SCALE, trigger_op=2, delta_ns=0),
        Recompute(tensor=FIRST, ops=(1,), before_op=3),
    )
    timeline = timeline_of(graph, LATENCIES_NS, plan, device_of(10_000))
    # There by 1000 ns, gone by 2100, back by 3200; the second run takes 100.
    assert timeline.op_times_ns()[0].tolist() == [0, 1000, 2100, 3300, 3400]
