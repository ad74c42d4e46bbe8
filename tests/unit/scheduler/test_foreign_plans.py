"""Plans that no planner made: what is accepted runs as predicted, and never waits for what cannot come."""

import pytest
from hypothesis import event, given

from tensile_db.errors import InvalidPlan
from tensile_db.scheduler.checking import check
from tensile_db.scheduler.plan_reading import read_plan
from tests.examples import examples
from tests.plans.oracle import replay
from tests.plans.random_plans import foreign_documents


@pytest.mark.slow
@given(foreign_documents())
@examples(600)
def test_the_replay_of_an_accepted_plan_sees_what_is_predicted(document):
    try:
        checked = check(read_plan(document))
    except InvalidPlan:
        event("refused")
        return
    for kind in ("swap_out", "recompute"):
        event(f"{kind}: {any(e['kind'] == kind for e in document['plan']['events'])}")
    seen = replay(document, iterations=14)
    assert (seen.peak_nbytes, seen.period_ns) == (checked.timeline.peak_nbytes, checked.timeline.period_ns)


def _document(tensors, ops, events, *, duplex=True):
    """Return a document: (nbytes, role) tensors; (reads, writes, recomputable) ops of 10 ns; a byte a ns."""
    return {
        "format": 1,
        "graph": {
            "tensors": [
                {"id": number, "nbytes": nbytes, "role": role, "persistent": role == "parameter", "name": "t"}
                for number, (nbytes, role) in enumerate(tensors)
            ],
            "ops": [
                {
                    "id": number,
                    "target": "op",
                    "phase": "forward",
                    "reads": reads,
                    "writes": writes,
                    "workspace_nbytes": 0,
                    "latency_ns": 10,
                    "recomputable": recomputable,
                }
                for number, (reads, writes, recomputable) in enumerate(ops)
            ],
        },
        "device": {
            "name": "link",
            "memory_nbytes": 10**6,
            "d2h_bytes_per_s": 10**9,
            "h2d_bytes_per_s": 10**9,
            "duplex": duplex,
        },
        "plan": {"policy": "foreign", "order": list(range(len(ops))), "events": events},
    }


def _out(tensor, trigger_op):
    return {"kind": "swap_out", "tensor": tensor, "trigger_op": trigger_op, "delta_ns": 0}


def _in(tensor, trigger_op):
    return {"kind": "swap_in", "tensor": tensor, "trigger_op": trigger_op, "delta_ns": 0}


def _release(tensor, after_op):
    return {"kind": "release", "tensor": tensor, "after_op": after_op}


def _agreed(document):
    """Return the period and the peak, on which the planner and the replay agree."""
    timeline, seen = check(read_plan(document)).timeline, replay(document)
    assert (seen.period_ns, seen.peak_nbytes) == (timeline.period_ns, timeline.peak_nbytes)
    return seen.period_ns, seen.peak_nbytes


def test_an_op_waits_for_a_swap_in_that_is_triggered_and_has_not_begun():
    # The copy of tensor 1 (50 ns) waits for that of tensor 0 (500 ns) ahead of it.
    document = _document(
        [(500, "parameter"), (50, "input"), (50, "activation"), (500, "gradient")],
        [
            ([], [1], False),
            ([0, 1], [2], True),
            ([2], [2], True),
            ([1, 2], [3], True),
            ([0, 3], [0], False),
        ],
        [
            *(_release(1, 3), _release(2, 3), _release(3, 4)),
            *(_out(0, 1), _out(1, 1), _in(1, 2), _in(0, 2)),
        ],
    )
    # Out 20 to 570, back 570 to 620, op 3 until 630; the parameter is back at 1120 and updated until 1130.
    assert _agreed(document) == (1130, 1100)


def test_what_is_on_its_way_stays_after_a_recomputation_that_makes_it_too():
    # Op 1 makes tensors 1 and 2; as 1 is made again, the triggered swap-in of 2 still waits for that of 3.
    document = _document(
        [(10, "input"), (10, "activation"), (10, "activation"), (300, "activation"), (10, "activation")],
        [
            ([], [0, 3], False),
            ([0], [1, 2], True),
            ([1], [4], True),
            ([4], [4], True),
            ([1, 4], [4], True),
            ([0, 2, 3, 4], [4], True),
        ],
        [
            *(_release(1, 2), _release(1, 4), _release(0, 5)),
            *(_release(2, 5), _release(3, 5), _release(4, 5)),
            {"kind": "recompute", "tensor": 1, "before_op": 4, "ops": [1]},
            *(_out(2, 1), _out(3, 1), _in(3, 3), _in(2, 3)),
        ],
    )
    # Out 20 to 30 and to 330, back 330 to 630 and to 640; then op 1 again, 4 and 5.
    assert _agreed(document) == (670, 340)


@pytest.mark.parametrize("duplex", [True, False])
def test_a_channels_copies_in_another_order_than_their_triggers_are_refused(duplex):
    # Tensor 1's swap-out would wait for tensor 0's, whose trigger is op 3; op 2 needs tensor 1.
    events = [
        *(_release(1, 4), _release(2, 4), _release(3, 4), _release(4, 4)),
        *(_out(0, 3), _in(0, 3), _out(1, 1), _in(1, 1)),
    ]
    document = _document(
        [(100, "parameter"), (50, "input"), (50, "activation"), (50, "activation"), (40, "activation")],
        [([], [1], False), ([0, 1], [2], True), ([1], [3], True), ([3], [4], True), ([0, 1, 2, 4], [], True)],
        events,
        duplex=duplex,
    )
    with pytest.raises(InvalidPlan, match=r"plan.events\[6\] copies tensor 1 and is triggered before"):
        check(read_plan(document))
    document["plan"]["events"] = events[:4] + events[6:] + events[4:6]
    _agreed(document)


def test_copies_of_two_channels_may_be_listed_in_any_order():
    document = _document(
        [(10, "parameter"), (5, "input"), (5, "activation")],
        [([], [1], False), ([0], [2], True), ([0, 1, 2], [], True)],
        [_release(1, 2), _release(2, 2), _in(1, 1), _out(1, 0), _out(0, 1), _in(0, 1)],
    )
    _agreed(document)
    document["device"]["duplex"] = False
    with pytest.raises(InvalidPlan, match=r"plan.events\[3\] copies tensor 1 and is triggered before"):
        check(read_plan(document))
