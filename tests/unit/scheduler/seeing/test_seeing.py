"""Plans made visible: what is away when, the trace, the tensors that are worth most to have away."""

import json
from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Phase, Role
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import Plan, Recompute, Release, SwapIn, SwapOut
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.seeing.away import away
from tensile_db.scheduler.seeing.top_tensors import IdleTensor, top_tensors
from tensile_db.scheduler.seeing.trace import trace_of
from tensile_db.scheduler.timeline import simulate
from tests.examples import examples
from tests.graphs.hand_made import device_of, graph_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs

pytestmark = pytest.mark.usefixtures("little_effort")

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD


def _step():
    """Return a step and a plan: state 0 and activation 1 are swapped, activation 2 is recomputed.

    0 state (10 B), 1 activation (20 B), 2 activation (40 B), 3 loss (1 B).  Ops take 100 ns, a byte 1 ns.
    """
    graph = graph_of(
        [(10, Role.OPTIMIZER_STATE), (20, Role.ACTIVATION), (40, Role.ACTIVATION), (1, Role.OUTPUT)],
        [
            ("tensile.load_batch", FORWARD, [], [1], False),
            ("layer", FORWARD, [1], [2], True),
            ("loss", FORWARD, [], [3], True),
            ("layer_backward", BACKWARD, [1, 2], [], False),
            ("update", Phase.OPTIMIZER, [0], [0], False),
        ],
    )
    plan = Plan(
        policy="hand-made",
        order=(0, 1, 2, 3, 4),
        events=(
            SwapOut(tensor=1, trigger_op=1),
            SwapIn(tensor=1, trigger_op=1, delta_ns=60),
            SwapIn(tensor=0, trigger_op=3),
            SwapOut(tensor=0, trigger_op=4),
            Release(tensor=2, after_op=1),
            Recompute(tensor=2, before_op=3, ops=(1,)),
            Release(tensor=1, after_op=3),
            Release(tensor=2, after_op=3),
            Release(tensor=3, after_op=2),
        ),
    )
    return graph, plan, simulate(graph, [100] * 5, plan, device_of(1000))


def test_what_is_away_is_on_the_host_or_released():
    graph, plan, timeline = _step()
    # load 0-100, layer 100-200, loss 200-300, layer again 300-400, backward 400-500, stall to 510, update.
    assert timeline.period_ns == 610
    absent = away(graph, plan, timeline)
    # The state leaves until 10 ns into the next iteration, and comes back from 500; tensor 1: 220 to 260.
    assert absent.swapped == ((0, 0), (10, 10), (220, 30), (260, 10), (500, 0))
    assert absent.recomputed == ((0, 0), (200, 40), (300, 0))


@given(st.data())
@examples(60)
def test_what_is_away_comes_in_ascending_steps_and_is_nothing_where_a_plan_moves_nothing(data):
    graph = data.draw(training_graphs())
    # Made at once, plans are made sooner and more of them pack.
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)), at_once=True)
    device = data.draw(devices())
    (free,) = plan_jobs([job], device)
    budget = data.draw(st.integers(lower_bound_peak_nbytes(graph), free.prediction.vanilla_peak_nbytes))
    (made,) = plan_jobs([job], replace(device, memory_nbytes=budget))
    planned = planned_graph(graph, made.plan)
    absent = away(planned, made.plan, made.timeline)
    everything = sum(tensor.nbytes for tensor in planned.tensors)
    for steps in (absent.swapped, absent.recomputed):
        assert [at for at, _ in steps] == sorted({at for at, _ in steps})
        assert all(0 <= at < made.timeline.period_ns and 0 <= nbytes <= everything for at, nbytes in steps)
    out = any(isinstance(e, SwapOut) for e in made.plan.events)
    again = any(isinstance(e, Recompute) for e in made.plan.events)
    event(f"{'swaps' if out else 'no swaps'}, {'recomputes' if again else 'no recomputation'}")
    assert out or absent.swapped == ((0, 0),)
    assert any(nbytes for _, nbytes in absent.recomputed) == again


def test_a_trace_has_a_row_for_ops_and_each_channel_and_a_counter_of_memory():
    graph, _, timeline = _step()
    trace = json.loads(json.dumps(trace_of(graph, timeline, "a step")))
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    spans = [
        (rows[e["tid"]], e["name"], e["cat"], e["ts"], e["dur"])
        for e in trace["traceEvents"]
        if e["ph"] == "X"
    ]
    assert spans == [
        ("compute", "tensile.load_batch", "forward", 0.0, 0.1),
        ("compute", "layer", "forward", 0.1, 0.1),
        ("compute", "loss", "forward", 0.2, 0.1),
        ("compute", "layer", "recompute", 0.3, 0.1),
        ("compute", "layer_backward", "backward", 0.4, 0.1),
        ("compute", "update", "optimizer", 0.51, 0.1),
        ("copies to the host", "tensor1", "swap_out", 0.2, 0.02),
        ("copies to the device", "tensor1", "swap_in", 0.26, 0.02),
        ("copies to the device", "tensor0", "swap_in", 0.5, 0.01),
        ("copies to the host", "tensor0", "swap_out", 0.61, 0.01),
    ]
    counter = [(e["ts"], e["args"]["bytes"]) for e in trace["traceEvents"] if e["ph"] == "C"]
    assert [ts for ts, _ in counter] == sorted(ts for ts, _ in counter)
    assert max(nbytes for _, nbytes in counter) == timeline.peak_nbytes == 60


def test_the_top_tensors_are_large_and_idle_for_long():
    graph, _, _ = _step()
    # The state (10 B) from one update to the next, 400 ns; activation 1 (20 B), 100 ns; 2 (40 B), 100 ns.
    assert top_tensors(graph, [100] * 5, 2) == (
        IdleTensor(tensor=0, idle_ns=400, after_op=4, before_op=4),
        IdleTensor(tensor=2, idle_ns=100, after_op=1, before_op=3),
    )
    # Tensor 3 is never read again, so it has no idle stretch.
    assert [idle.tensor for idle in top_tensors(graph, [100] * 5, 9)] == [0, 2, 1]
