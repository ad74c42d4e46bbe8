"""Plans read back from JSON: figures as the independent replay has them, and a sentence for what is wrong."""

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.errors import InvalidPlan, InvalidRequest
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.checking import check
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan_json import plan_to_json
from tensile_db.scheduler.plan_reading import read_plan
from tensile_db.scheduler.policies import vanilla
from tests.examples import examples
from tests.graphs.random_graphs import devices, random_jobs
from tests.plans.oracle import replay

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

#: What may stand where something else belongs.
STRANGE = st.sampled_from(
    [
        *(
            None,
            True,
            -1,
            0,
            1,
            7,
            10**6,
            2**61,
            2**62,
            2**63,
            10**400,
            1.5,
            1e308,
            float("nan"),
            float("inf"),
        ),
        *("", "7", "\ud800", "[/b]\x1b", "release", [], [0], [[]], [0, 0], [None], {}, {"id": 0}),
    ]
)


@st.composite
def documents(draw, policies=("auto", "tensile", "vanilla", "capuchin", "checkpoint", "auto_split")):
    """Draw a job's plan within a budget as a document that has gone through text."""
    job = draw(st.sampled_from(policies).flatmap(lambda policy: random_jobs(policy, max_layers=5)))
    # Made at once, plans are made sooner and more of them pack.
    job, device = replace(job, at_once=True), draw(devices(costly_copies=True))
    if job.policy in ("auto", "tensile", "auto_split"):
        least, eager = lower_bound_peak_nbytes(job.graph), vanilla.peak_nbytes(job.graph)
        device = replace(device, memory_nbytes=draw(st.integers(least, eager)))
    (made,) = plan_jobs([job], device)
    document = plan_to_json(job.graph, job.latencies_ns, device, made.plan, made.prediction, made.timeline)
    return json.loads(json.dumps(document))


@given(documents())
@examples(120)
def test_the_figures_of_a_plan_are_those_that_were_told_and_those_of_the_replay(document):
    told, checked = document["predicted"], check(read_plan(document))
    seen = replay(document, iterations=14)
    event("packed" if document["plan"]["packed"] else "as captured")
    for kind in ("swap_out", "recompute"):
        event(f"{kind}: {any(e['kind'] == kind for e in document['plan']['events'])}")
    assert (seen.peak_nbytes, seen.period_ns) == (checked.timeline.peak_nbytes, checked.timeline.period_ns)
    assert checked.figures == {name: told[name] for name in checked.figures}
    assert checked.needed_nbytes == told["guaranteed_peak_nbytes"] <= document["device"]["memory_nbytes"]


@given(st.data())
@examples(120)
def test_a_plan_without_predictions_has_its_own_figures(data):
    document = data.draw(documents())
    told = document.pop("predicted")
    del document["timeline"]
    if document["plan"].pop("packed"):
        # What eager does with the captured graph is not told.
        event("packed")
        document["plan"]["packed"] = [0]
        assert check(read_plan(document)).figures["msr"] is None
        return
    event("as captured")
    assert check(read_plan(document)).figures["cbr"] == told["cbr"]


def _places(value, found):
    """Return each container with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], dict | list):
            _places(value[key], found)
    return found


@given(st.data())
@examples(1000)
def test_whatever_stands_in_a_document_it_is_judged_without_a_traceback(data):
    document = data.draw(documents(("tensile",)))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(_places(document, [])))
        if data.draw(st.booleans()):
            del container[key]
        else:
            container[key] = data.draw(STRANGE)
    try:
        check(read_plan(document))
    except (InvalidRequest, InvalidPlan) as refusal:
        event(type(refusal).__name__)
        said = refusal
    else:
        event("valid")
        return
    assert said.hint
    assert 0 < len(said.message) < 500


@st.composite
def edited(draw):
    """Draw a document whose plan somebody has edited."""
    document = copy.deepcopy(draw(documents(("tensile", "auto"))))
    events, order, ops = document["plan"]["events"], document["plan"]["order"], document["graph"]["ops"]
    some_op = st.integers(0, len(ops) - 1)
    for _ in range(draw(st.integers(1, 3))):
        edit = draw(st.sampled_from(["leave out", "move", "retime", "rebind", "reorder", "latency", "link"]))
        if edit == "latency":
            ops[draw(some_op)]["latency_ns"] = draw(st.integers(1, 5000))
        elif edit == "link":
            document["device"][draw(st.sampled_from(["d2h_bytes_per_s", "h2d_bytes_per_s"]))] = draw(
                st.sampled_from([10**5, 10**7, 10**9])
            )
        elif edit == "reorder":
            place = draw(st.integers(0, len(order) - 2))
            order[place : place + 2] = reversed(order[place : place + 2])
        elif events:
            place = draw(st.integers(0, len(events) - 1))
            if edit == "leave out":
                del events[place]
            elif edit == "move":
                events.insert(draw(st.integers(0, len(events) - 1)), events.pop(place))
            elif edit == "retime" and "delta_ns" in events[place]:
                events[place]["delta_ns"] = draw(st.integers(0, 3000))
            else:
                bound = next(key for key in ("trigger_op", "before_op", "after_op") if key in events[place])
                events[place][bound] = draw(some_op)
    return document


@given(edited())
@examples(800)
def test_of_an_edited_plan_that_is_valid_the_replay_sees_the_same(document):
    try:
        checked = check(read_plan(document))
    except InvalidPlan:
        event("invalid")
        return
    event("valid")
    seen = replay(document, iterations=14)
    assert (seen.peak_nbytes, seen.period_ns) == (checked.timeline.peak_nbytes, checked.timeline.period_ns)
