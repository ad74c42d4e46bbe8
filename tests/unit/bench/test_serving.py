"""Rows answered on a simulated device: alone as predicted, together by turns, with memory or without."""

from dataclasses import replace
from functools import partial

import pytest

from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import subject
from tensile_db.bench.queueing import serving
from tensile_db.bench.queueing.requests import Asked, Served, simulate
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.machines import machine

#: Left out of `make check`.
pytestmark = pytest.mark.slow

P100 = machine("sim:p100")
SECOND = 10**9


@pytest.fixture(scope="module")
def model(captures):
    sizes = (1, 2, 4)
    return Served(sizes={n: subject(captures.graph(workload("vit"), n, None), P100) for n in sizes})


def answered(models, asked, device=P100, sharing="auto", training=None):
    rows = [Asked(at_ns=at_ns, model=number) for at_ns, number in asked]
    return simulate(models, rows, device, sharing, partial(serving._plan, {}), training=training)


def test_a_row_takes_as_long_as_its_forward_pass(model):
    outcome = answered([model], [(n * SECOND, 0) for n in range(5)])
    assert outcome.latencies_ns == [(0, model.sizes[1].eager_ns)] * 5
    assert (outcome.turns, outcome.moved) == (5, 0)


def test_rows_that_wait_together_go_forward_together(model):
    outcome = answered([model], [(0, 0), (1, 0), (2, 0)])
    first_ns, both_ns = model.sizes[1].eager_ns, model.sizes[2].eager_ns
    assert outcome.latencies_ns == [(0, first_ns), (0, first_ns + both_ns - 1), (0, first_ns + both_ns - 2)]
    assert outcome.turns == 2


def test_more_rows_than_go_forward_together_take_more_turns(model):
    outcome = answered([model], [(0, 0)] * 9)
    assert outcome.turns == 3
    assert outcome.ended_ns == 2 * model.sizes[4].eager_ns + model.sizes[1].eager_ns


def test_models_take_turns(model):
    outcome = answered([model] * 3, [(0, 0), (0, 1), (0, 2)])
    one_ns = model.sizes[1].eager_ns
    assert sorted(outcome.latencies_ns) == [(0, one_ns), (1, 2 * one_ns), (2, 3 * one_ns)]


def test_a_model_that_has_no_room_comes_over_the_link_for_its_row(model):
    largest = model.sizes[4]
    state_nbytes = largest.graph.state_nbytes
    room = replace(P100, memory_nbytes=int(1.5 * state_nbytes + largest.eager_peak_nbytes))
    # Two of the four linger, and leave in the order of their use.
    outcome = answered([model] * 4, [(n * SECOND, n % 4 if n < 20 else n % 2) for n in range(40)], room)
    coming_ns = copy_ns(state_nbytes, P100.h2d_bytes_per_s)
    one_ns = model.sizes[1].eager_ns
    latencies_ns = {latency_ns for _, latency_ns in outcome.latencies_ns}
    assert min(latencies_ns) == one_ns
    assert one_ns + coming_ns in latencies_ns
    assert latencies_ns == {one_ns, one_ns + coming_ns}
    # The first one is there still when it is asked for again.
    assert [latency_ns == one_ns for _, latency_ns in outcome.latencies_ns] == [False] * 22 + [True] * 18
    assert (outcome.moved, outcome.turns) == (22, 40)


def test_the_model_that_is_used_stays_on_the_device(model):
    largest = model.sizes[4]
    room = replace(P100, memory_nbytes=largest.graph.state_nbytes + 2 * largest.eager_peak_nbytes)
    outcome = answered([model] * 4, [(n * SECOND, 2) for n in range(30)], room)
    last = [latency_ns for _, latency_ns in outcome.latencies_ns[-10:]]
    assert last == [model.sizes[1].eager_ns] * 10


@pytest.mark.parametrize("sharing", ["auto", "fifo", "srtf", "pack", "fair"])
def test_beside_a_training_rows_are_answered_soon_and_the_training_goes_on(captures, model, sharing):
    training = subject(captures.graph(workload("vit"), 16, "adam"), P100)
    asked = [(n * SECOND // 5, 0) for n in range(25)]
    outcome = answered([model], asked, sharing=sharing, training=training)
    pace = outcome.iterations * training.eager_ns / outcome.ended_ns
    assert 0.7 < pace < 1
    # They have a lane of their own: each takes at most twice as long as alone.
    one_ns = model.sizes[1].eager_ns
    assert all(one_ns <= latency_ns <= 2 * one_ns + 1 for _, latency_ns in outcome.latencies_ns)


def test_models_larger_than_the_device_are_refused(model):
    with pytest.raises(DoesNotFit):
        answered([model], [(0, 0)], replace(P100, memory_nbytes=10**6))


def test_the_document_has_a_row_for_each_case(captures, monkeypatch):
    monkeypatch.setattr(serving, "TRAINING", "superres_32")
    document = serving.run(captures, P100, networks=["superres"], copies=2, rates=(1.0,), seconds=5.0)
    assert document["workload"]["models"] == 2
    assert [(row["training"], row["share"]) for row in document["rows"]] == [
        (beside, share) for beside in (False, True) for share in serving.SHARES
    ]
    ample = document["rows"][0]
    assert ample["rows"] > 0
    assert ample["moved"] == 0
    assert 0 <= ample["added_ms"] <= ample["added_95_ms"] + ample["alone_ms"]
