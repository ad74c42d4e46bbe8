"""What is wrong with a plan's JSON is said in a sentence that names the place."""

import json

import pytest

from tensile_db.errors import InvalidPlan, InvalidRequest
from tensile_db.scheduler.checking import check
from tensile_db.scheduler.plan_reading import read_plan

#: Two layers' worth of a step: the weight leaves for the host while the loss is made, and the activation is
#: made again.
_TENSORS = [
    {"id": 0, "nbytes": 100, "role": "parameter", "persistent": True, "name": "weight"},
    {"id": 1, "nbytes": 40, "role": "activation", "persistent": False, "name": "value"},
    {"id": 2, "nbytes": 4, "role": "output", "persistent": False, "name": "loss"},
]
_OP = {"phase": "forward", "workspace_nbytes": 0, "latency_ns": 100, "recomputable": True}
_OPS = [
    {"id": 0, "target": "make", "reads": [0], "writes": [1], **_OP},
    {"id": 1, "target": "lose", "reads": [1], "writes": [2], **_OP},
    {"id": 2, "target": "report", "reads": [0, 1, 2], "writes": [], **_OP},
]
_EVENTS = [
    {"kind": "release", "tensor": 1, "after_op": 1},
    {"kind": "recompute", "tensor": 1, "before_op": 2, "ops": [0]},
    {"kind": "release", "tensor": 1, "after_op": 2},
    {"kind": "release", "tensor": 2, "after_op": 2},
    {"kind": "swap_out", "tensor": 0, "trigger_op": 0, "delta_ns": 0},
    {"kind": "swap_in", "tensor": 0, "trigger_op": 1, "delta_ns": 0},
    {"kind": "wait", "tensor": 0, "before_op": 2},
]
_DEVICE = {
    "name": "slow",
    "memory_nbytes": 1000,
    "d2h_bytes_per_s": 10**9,
    "h2d_bytes_per_s": 10**9,
    "duplex": True,
}


def _document():
    return json.loads(
        json.dumps(
            {
                "format": 1,
                "graph": {"tensors": _TENSORS, "ops": _OPS},
                "device": _DEVICE,
                "plan": {"policy": "hand", "order": [0, 1, 2], "events": _EVENTS},
            }
        )
    )


def _edited(path, value):
    """Return the document with another value at a path, or without it where the value is ...."""
    document = _document()
    *above, last = path
    container = document
    for key in above:
        container = container[key]
    if value is ...:
        del container[last]
    else:
        container[last] = value
    return document


def test_a_plan_by_hand_is_judged():
    checked = check(read_plan(_document()))
    # The weight leaves within 100 ns while op 1 runs, comes back in 100, and op 0 runs again.
    assert checked.figures == {
        "vanilla_peak_nbytes": 144,
        "peak_nbytes": 144,
        "guaranteed_peak_nbytes": 144,
        "vanilla_time_ns": 300,
        "time_ns": 500,
        "msr": 0.0,
        "eor": 500 / 300,
        "cbr": 0.0,
    }


def test_whole_numbers_that_a_program_wrote_with_a_fraction_of_0_are_the_same():
    written = json.loads(json.dumps(_document()), parse_int=float)
    assert read_plan(written) == read_plan(_document())


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("format",), 2, "the document's format is 2: this version reads 1"),
        (("format",), ..., "the document does not say format"),
        (("graph",), [], "graph is a list, not an object"),
        (("graph", "tensors"), {}, "graph.tensors is an object, not a list"),
        (("graph", "ops"), [], "graph.ops is empty"),
        (("graph", "tensors", 1, "id"), 0, "graph.tensors[1] has the id 0: an id is the place in the list"),
        (("graph", "tensors", 1, "nbytes"), -1, "graph.tensors[1].nbytes is -1, not a whole number from 0"),
        (("graph", "tensors", 1, "nbytes"), 1.5, "graph.tensors[1].nbytes is 1.5, not a whole number"),
        (
            ("graph", "tensors", 1, "nbytes"),
            2.0**54,
            "graph.tensors[1].nbytes is 1.8014398509481984e+16, not a",
        ),
        (("graph", "tensors", 1, "nbytes"), True, "graph.tensors[1].nbytes is true, not a whole number"),
        (("graph", "tensors", 1, "nbytes"), 2**62, "the graph's tensors have 4611686018427388008 bytes"),
        (("graph", "tensors", 1, "role"), "sum", 'graph.tensors[1].role is "sum", not one of parameter,'),
        (("graph", "tensors", 1, "name"), "\x1b[2J", "graph.tensors[1].name is "),
        (("graph", "tensors", 1, "persistent"), 1, "graph.tensors[1].persistent is 1, not true or false"),
        (("graph", "ops", 1, "reads"), [7], "graph.ops[1].reads[0] is 7, not the id of one of the 3 tensors"),
        (("graph", "ops", 1, "reads"), [1, 1], "graph.ops[1].reads has 1 twice"),
        (
            ("graph", "ops", 0, "reads"),
            [2],
            "graph.ops[0] reads tensor 2, which is not persistent, and no op",
        ),
        (
            ("graph", "ops", 1, "unread"),
            [0],
            "graph.ops[1].unread has tensor 0, which is not among its reads",
        ),
        (("graph", "ops", 1, "latency_ns"), 0, "graph.ops[1].latency_ns is 0, not a whole number from 1"),
        (("graph", "ops", 1, "latency_ns"), 2**60, "ns together: no clock goes so far"),
        (("graph", "ops", 1, "workspace_nbytes"), "4", 'graph.ops[1].workspace_nbytes is "4", not a whole'),
        (("graph", "ops", 1, "recomputable"), ..., "graph.ops[1] does not say recomputable"),
        (("device", "memory_nbytes"), 0, "device.memory_nbytes is 0, not a whole number from 1"),
        (("device", "duplex"), None, "device does not say duplex"),
        (("plan", "order"), [0, 1], "plan.order has 2 of the 3 ops: op 2 is left out"),
        (("plan", "order"), [0, 1, 1], "plan.order has 1 twice"),
        (("plan", "order"), [0, 1, 3], "plan.order[2] is 3, not the id of one of the 3 ops"),
        (
            ("plan", "events", 0, "kind"),
            "free",
            'plan.events[0].kind is "free", not one of swap_out, swap_in',
        ),
        (
            ("plan", "events", 0, "tensor"),
            3,
            "plan.events[0].tensor is 3, not the id of one of the 3 tensors",
        ),
        (("plan", "events", 0, "after_op"), None, "plan.events[0] does not say after_op"),
        (("plan", "events", 4, "trigger_op"), ..., "plan.events[4] does not say trigger_op"),
        (("plan", "events", 4, "delta_ns"), -1, "plan.events[4].delta_ns is -1, not a whole number from 0"),
        (
            ("plan", "events", 1, "ops"),
            [1],
            "plan.events[1] recomputes tensor 1, which none of its ops makes",
        ),
        (("plan", "packed"), 4, "packed is 4, not a list"),
        (("predicted",), {"vanilla_time_ns": 0}, "predicted.vanilla_time_ns is 0, not a whole number from 1"),
        (("predicted",), {"msr": float("nan")}, "predicted.msr is NaN, not a finite number"),
    ],
)
def test_what_is_malformed_is_named(path, value, said):
    with pytest.raises(InvalidRequest) as refusal:
        read_plan(_edited(path, value))
    assert said in refusal.value.message
    assert "docs/plan_format.md" in refusal.value.hint


@pytest.mark.parametrize("document", [None, 7, "plan", [], {}, [[]]])
def test_what_is_no_document_is_refused(document):
    with pytest.raises(InvalidRequest, match="the document"):
        read_plan(document)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("plan", "events", 1), ..., "instruction 7 (Compute(op=2, recompute=False)): op 2 reads tensor 1, "),
        (("plan", "events", 5), ..., "op 0 reads tensor 0, which is HOST"),
        (
            ("plan", "events", 3),
            ...,
            'tensor 2 ("loss") is not released in the end: it is still on the device when the iteration ends',
        ),
        (("plan", "order"), [1, 0, 2], "instruction 0 (Compute(op=1, recompute=False)): op 1 reads tensor 1"),
        (("graph", "ops", 0, "recomputable"), False, "runs op 0 again, which has not run or must not run"),
        (("plan", "events", 6, "tensor"), 1, "waits for tensor 1, of which no copy is under way"),
    ],
)
def test_of_a_plan_that_loses_or_misses_a_tensor_the_instruction_is_named(path, value, said):
    read = read_plan(_edited(path, value))
    with pytest.raises(InvalidPlan) as refusal:
        check(read)
    assert said in refusal.value.message
    assert "Instructions are what ops and events become" in refusal.value.hint


def test_what_comes_while_another_leaves_is_held_with_it_by_the_clock_but_not_by_instructions():
    document = _document()
    document["graph"] = {
        "tensors": [_TENSORS[0], {**_TENSORS[0], "id": 1}],
        "ops": [{**_OPS[0], "id": place, "reads": [place % 2], "writes": []} for place in range(3)],
    }
    document["plan"]["events"] = [
        {"kind": "swap_out", "tensor": 0, "trigger_op": 0, "delta_ns": 0},
        {"kind": "wait", "tensor": 0, "before_op": 1},
        {"kind": "swap_in", "tensor": 1, "trigger_op": 0, "delta_ns": 0},
        {"kind": "swap_out", "tensor": 1, "trigger_op": 1, "delta_ns": 0},
        {"kind": "wait", "tensor": 1, "before_op": 2},
        {"kind": "swap_in", "tensor": 0, "trigger_op": 1, "delta_ns": 100},
    ]
    checked = check(read_plan(document))
    assert (checked.timeline.peak_nbytes, checked.guaranteed_peak_nbytes, checked.needed_nbytes) == (
        200,
        100,
        200,
    )
    # Sitting the wait out, as the other one does.
    document["plan"]["events"][2]["delta_ns"] = 100
    checked = check(read_plan(document))
    assert checked.needed_nbytes == checked.timeline.peak_nbytes == 100


def test_a_tensor_that_is_to_come_back_before_it_leaves_is_refused():
    document = _document()
    # It is never written, so that the host has its value throughout.
    document["plan"]["events"][4:] = [
        {"kind": "swap_in", "tensor": 0, "trigger_op": None, "delta_ns": 0},
        {"kind": "swap_out", "tensor": 0, "trigger_op": 0, "delta_ns": 0},
        {"kind": "swap_in", "tensor": 0, "trigger_op": 1, "delta_ns": 0},
        {"kind": "swap_out", "tensor": 0, "trigger_op": 2, "delta_ns": 0},
    ]
    check(read_plan(document))
    document["plan"]["events"][5]["delta_ns"] = 1000
    with pytest.raises(InvalidPlan, match="the copies of tensor 0 would begin in another order"):
        check(read_plan(document))


def test_of_a_rewritten_graph_eager_is_as_told_or_unknown():
    document = _document()
    document["plan"]["packed"] = [1]
    assert check(read_plan(document)).figures["msr"] is None
    document["predicted"] = {"vanilla_peak_nbytes": 288, "vanilla_time_ns": 250}
    figures = check(read_plan(document)).figures
    assert (figures["msr"], figures["eor"], figures["cbr"]) == (0.5, 2.0, 0.25)
    # Of a graph as captured it is worked out, whatever is told.
    del document["plan"]["packed"]
    assert check(read_plan(document)).figures["vanilla_peak_nbytes"] == 144
