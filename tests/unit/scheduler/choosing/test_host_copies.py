"""What the host has still is not copied again: a tensor leaves at once, and the planner counts on that."""

from dataclasses import replace

import pytest

from tensile_db.graph import Phase, Role
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.choices import Choices
from tensile_db.scheduler.choosing.gaps import SWAP, Gaps
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.plan import Plan, Release, SwapIn, SwapOut, Wait
from tensile_db.scheduler.policies import attempts, drafts, vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import as_rewritten
from tensile_db.scheduler.timeline import simulate
from tests.fixtures.drafts import DEVICE as MACHINE
from tests.fixtures.drafts import job_of
from tests.graphs.hand_made import device_of, graph_of
from tests.plans.replayed_plans import timeline_of
from tests.steps.captured_steps import captured_step

PARAMETER, ACTIVATION = 0, 1
FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER


def _step():
    """Return a step whose parameter (300 B) and activation (1000 B) one op uses last, going forward."""
    return graph_of(
        [
            (300, Role.PARAMETER),
            (1000, Role.ACTIVATION),
            (10, Role.INPUT),
            (10, Role.ACTIVATION),
            (10, Role.ACTIVATION),
            (300, Role.GRADIENT),
        ],
        [
            ("tensile.load_batch", FORWARD, [], [2], False),
            ("layer", FORWARD, [0, 2], [1], True),
            ("layer", FORWARD, [0, 1], [3], True),
            ("layer", FORWARD, [3], [4], True),
            ("layer", FORWARD, [4], [4], True),
            ("layer_backward", BACKWARD, [0, 1, 3, 4], [5], True),
            ("update", OPTIMIZER, [0, 5], [0], False),
            ("tensile.report", OPTIMIZER, [2], [], False),
        ],
    )


LATENCIES_NS = (400, 100, 100, 1500, 1500, 100, 100, 400)
DEVICE = device_of(10_000)


def _plan(*, over_the_end: bool) -> Plan:
    """Return a plan that swaps activation and parameter going forward."""
    ahead = (SwapIn(tensor=0, trigger_op=None, delta_ns=0), SwapOut(tensor=0, trigger_op=6, delta_ns=0))
    return Plan(
        policy="test",
        order=tuple(range(8)),
        events=(
            *(ahead[:1] if over_the_end else ()),
            SwapOut(tensor=1, trigger_op=2, delta_ns=0),
            SwapOut(tensor=0, trigger_op=2, delta_ns=0),
            SwapIn(tensor=0, trigger_op=3, delta_ns=0),
            SwapIn(tensor=1, trigger_op=3, delta_ns=0),
            *(ahead[1:] if over_the_end else ()),
            Wait(tensor=0, before_op=3),
            Wait(tensor=1, before_op=4),
            *(Release(tensor=tensor, after_op=5) for tensor in (1, 3, 4)),
            Release(tensor=5, after_op=6),
            Release(tensor=2, after_op=7),
            *((Wait(tensor=0, before_op=None),) if over_the_end else ()),
        ),
    )


@pytest.mark.parametrize(("over_the_end", "stall_ns"), [(True, 0), (False, 1300)])
def test_what_the_host_has_leaves_without_waiting_for_the_channel(over_the_end, stall_ns):
    graph, plan = _step(), _plan(over_the_end=over_the_end)
    timeline = timeline_of(graph, LATENCIES_NS, plan, DEVICE)
    # Both copies to the host, of 1000 and 300 ns, where there is none at the iteration's end.
    assert timeline.period_ns == sum(LATENCIES_NS) + stall_ns
    out = [(begin, end) for tensor, to_host, begin, end in timeline.moves.tolist() if to_host and tensor == 0]
    assert sum(end - begin for begin, end in out) == 300


def test_what_leaves_without_a_copy_holds_no_copy_up():
    graph, plan = _step(), _plan(over_the_end=True)
    # It is listed before the activation, and leaves long after that has begun to.
    late = SwapOut(tensor=0, trigger_op=2, delta_ns=700)
    others = (
        replace(event, before_op=4) if event == Wait(tensor=0, before_op=3) else event
        for event in plan.events
        if event != replace(late, delta_ns=0)
    )
    plan = replace(plan, events=(late, *others))
    timeline = timeline_of(graph, LATENCIES_NS, plan, DEVICE)
    assert timeline.period_ns == sum(LATENCIES_NS)
    ((begin, end),) = [
        (begin, end) for tensor, out, begin, end in timeline.moves.tolist() if out and tensor == 1
    ]
    ((left, _),) = [
        (begin, end)
        for tensor, out, begin, end in timeline.moves.tolist()
        if out and tensor == 0 and begin == end
    ]
    assert begin < left < end


def _gaps():
    residency = Residency(_step(), LATENCIES_NS)
    return Gaps(residency, Link(DEVICE), {}, 1)


def _between(gaps, tensor):
    """Return, for each gap of a tensor by the op before it, the ops before the gaps that may pay for it."""
    return {
        gap.previous: [gaps.all[earlier].previous for earlier in gaps.paid_in[index]]
        for index, gap in enumerate(gaps.all)
        if gap.tensor == tensor
    }


def test_gaps_until_the_next_write_share_one_copy_to_the_host():
    gaps = _gaps()
    # The one over the iteration's end comes first: the update is the last write.
    assert _between(gaps, PARAMETER) == {6: [], 2: [6]}
    assert _between(gaps, ACTIVATION) == {2: []}
    # A write between two gaps: the value that the host has is the one before.
    assert _between(gaps, 4) == {}


def test_no_gap_shares_a_copy_with_one_before_a_write():
    graph = graph_of(
        [(10, Role.OPTIMIZER_STATE), (10, Role.INPUT), (10, Role.ACTIVATION)],
        [
            ("tensile.load_batch", FORWARD, [], [1], False),
            ("layer", FORWARD, [0, 1], [2], True),
            ("layer", FORWARD, [2], [2], True),
            ("update", OPTIMIZER, [0], [0], False),
            ("layer", FORWARD, [2], [2], True),
            ("layer", FORWARD, [0, 2], [2], True),
            ("layer", FORWARD, [2], [2], True),
            ("update", OPTIMIZER, [0], [0], False),
            ("tensile.report", OPTIMIZER, [2], [], False),
        ],
    )
    gaps = Gaps(Residency(graph, (10,) * 9), Link(DEVICE), {}, 1)
    # After the last update until the next step's read, then until the first update; after that one twice.
    assert _between(gaps, 0) == {7: [], 1: [7], 3: [], 5: [3]}


def test_a_parameter_leaves_at_the_end_where_the_channel_has_no_time_going_forward():
    residency = Residency(_step(), LATENCIES_NS)
    # Without the parameter and the activation there is just room.
    budget_nbytes = int(residency.footprint[3]) - 1300
    choices = Choices(residency, Link(DEVICE), {}, budget_nbytes=budget_nbytes, least_nbytes=100)
    choices.meet_budget()
    swapped = {
        (gap.tensor, gap.previous)
        for gap, choice in zip(choices.gaps.all, choices.chosen, strict=True)
        if choice == SWAP
    }
    assert {(PARAMETER, 2), (PARAMETER, 6)} <= swapped
    (wrapping,) = (absence for absence in residency.absences[PARAMETER] if absence.gap.wraps)
    (forward,) = (absence for absence in residency.absences[PARAMETER] if not absence.gap.wraps)
    assert wrapping.out_position == 6
    # At once: nothing has to be copied.
    assert (forward.out_position, forward.begin) == (2, 3)


@pytest.mark.thorough
@pytest.mark.usefixtures("little_effort")
def test_a_network_saves_more_for_parameters_that_leave_without_a_copy(monkeypatch):
    device = machine("sim:a6000")
    graph = captured_step("resnet26", batch=8, side=160)
    job = JobRequest(job_id=1, graph=graph, latencies_ns=predict_latencies_ns(graph, device))
    short = replace(device, memory_nbytes=int(0.35 * vanilla.peak_nbytes(graph)))
    (made,) = plan_jobs([job], short)
    planned = as_rewritten(job, made.plan.rewriting, short)
    parameters = {tensor.id for tensor in graph.tensors if tensor.role is Role.PARAMETER}
    moves = [
        (tensor, bool(out), end - begin)
        for tensor, out, begin, end in simulate(
            planned.graph, planned.latencies_ns, made.plan, short
        ).moves.tolist()
        if tensor in parameters
    ]
    twice = {tensor for tensor, out, _ in moves if [t for t, o, _ in moves if o].count(tensor) == 2}
    assert twice
    for tensor in twice:
        assert sorted(ns > 0 for each, out, ns in moves if out and each == tensor) == [False, True]
    monkeypatch.setattr(Choices, "_swap_before", lambda self, index: None)
    (without,) = plan_jobs([job], short)
    assert made.prediction.time_ns < without.prediction.time_ns


@pytest.mark.slow
def test_of_a_link_that_others_use_too_plans_without_copies_ahead_are_tried_as_well(monkeypatch):
    job = job_of(captured_step("test_vit", batch=8, side=96))
    tried = set()
    nothing_chosen = drafts.Drafter.nothing_chosen

    def noted(planner, order, way, *rest):
        tried.add(way.ahead)
        return nothing_chosen(planner, order, way, *rest)

    monkeypatch.setattr(drafts.Drafter, "nothing_chosen", noted)
    budget_nbytes = int(0.5 * vanilla.peak_nbytes(job.graph))
    attempts.Planner(job, MACHINE, budget_nbytes, sharers=1).fastest()
    assert tried == {True}
    shared = attempts.Planner(job, MACHINE, budget_nbytes, sharers=5).fastest()
    assert tried == {True, False}
    monkeypatch.setattr(attempts, "USUAL_WAY", replace(attempts.USUAL_WAY, ahead=False))
    without = attempts.Planner(job, MACHINE, budget_nbytes, sharers=5).fastest()
    assert shared.period_ns < without.period_ns
