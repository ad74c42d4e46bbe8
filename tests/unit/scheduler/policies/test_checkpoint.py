"""Gradient checkpointing: where segments end, what stays, and what runs again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile_db.errors import DoesNotFit, InvalidRequest
from tensile_db.graph import Phase, Role, StepGraph
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples
from tests.graphs.hand_made import device_of, graph_of
from tests.graphs.networks_by_hand import convolutional, plain
from tests.graphs.random_graphs import convolutional_graphs, devices, latencies_for
from tests.plans.plan_events import recomputed
from tests.plans.replayed_plans import plan_and_replay


def _made(policy: str, graph: StepGraph, memory_nbytes: int = 10**6):
    job = JobRequest(job_id=1, graph=graph, latencies_ns=[1000] * len(graph.ops), policy=policy)
    (made,) = plan_jobs([job], device_of(memory_nbytes))
    return made


def test_nine_layers_make_three_segments_of_three():
    made = _made("checkpoint", plain(9))
    # Layers 0..2, 3..5 and 6..8: tensors 3 and 6 pass on, the last segment stays.  Op 14 is the backward op
    # of layer 5, op 17 that of layer 2.
    assert recomputed(made.plan) == [
        (14, 4, (4,)),
        (14, 5, (5,)),
        (17, 1, (1,)),
        (17, 2, (2,)),
    ]
    assert made.prediction.time_ns == made.prediction.vanilla_time_ns + 4 * 1000


def test_ten_layers_make_segments_of_four():
    assert [tensor for _, tensor, _ in recomputed(_made("checkpoint", plain(10)).plan)] == [
        *(5, 6, 7),
        *(1, 2, 3),
    ]


def test_the_peak_grows_with_the_root_of_the_number_of_layers():
    # Kept: a feature map a segment, and one segment's own; beside them two gradients and a few bytes.
    for layers, maps in ((9, 7), (36, 13), (100, 21)):
        made = _made("checkpoint", plain(layers))
        assert made.prediction.peak_nbytes // 100 == maps
        assert made.prediction.vanilla_peak_nbytes // 100 == layers + 2


def test_in_place_ops_run_again_with_the_op_whose_result_they_change():
    made = _made("checkpoint", convolutional())
    # 9 layers: 4 convolutions, 4 batch norms, 1 product; cuts after the first and the second three of them.
    assert recomputed(made.plan) == [
        (21, 6, (5, 6)),
        (21, 8, (7,)),
        (25, 2, (1,)),
        (25, 3, (2, 3)),
    ]


def test_cuts_at_articulation_points_avoid_skip_connections():
    # A skip over layers 1..4 leaves only what is before and after them to cut at.
    made = _made("checkpoint_articulation", _with_skip())
    assert [(before, tensor) for before, tensor, _ in recomputed(made.plan)] == [
        *((9, 2), (9, 3), (9, 4)),
    ]
    assert [tensor for _, tensor, _ in recomputed(_made("checkpoint", _with_skip()).plan)] == [2]


def _with_skip() -> StepGraph:
    """Return six layers in a row, tensors 1..6; the fifth adds the first one's tensor."""
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    reads = [[0], [1], [2], [3], [4, 1], [5]]
    tensors = [(10, Role.INPUT), *((100, Role.ACTIVATION),) * 6, (1, Role.OUTPUT), (100, Role.ACTIVATION)]
    ops = [("tensile.load_batch", forward, [], [0], False)]
    ops += [("layer", forward, read, [k + 1], True) for k, read in enumerate(reads)]
    ops.append(("loss", forward, [6], [7, 8], True))
    gradient = 8
    for k in reversed(range(6)):
        tensors.append((100, Role.ACTIVATION))
        ops.append(("layer_backward", backward, [*reads[k], k + 1, gradient], [gradient + 1], True))
        gradient += 1
    ops.append(("tensile.report", Phase.OPTIMIZER, [7], [], False))
    return graph_of(tensors, ops)


def test_what_random_ops_make_stays():
    graph = plain(9)
    ops = tuple(replace(op, recomputable=op.recomputable and op.id != 5) for op in graph.ops)
    made = _made("checkpoint", StepGraph(tensors=graph.tensors, ops=ops))
    assert [tensor for _, tensor, _ in recomputed(made.plan)] == [4, 1, 2]


def test_a_network_without_articulation_points_is_refused_with_policies_that_would_do():
    graph = graph_of(
        [(1, Role.INPUT), (1, Role.ACTIVATION), (1, Role.ACTIVATION), (1, Role.OUTPUT), (1, Role.ACTIVATION)],
        [
            ("tensile.load_batch", Phase.FORWARD, [], [0], False),
            ("both", Phase.FORWARD, [0], [1, 2], True),
            ("loss", Phase.FORWARD, [1, 2], [3], True),
            ("backward", Phase.BACKWARD, [1, 2], [4], True),
            ("tensile.report", Phase.OPTIMIZER, [3], [], False),
        ],
    )
    with pytest.raises(InvalidRequest, match="no such place") as refusal:
        _made("checkpoint_articulation", graph)
    assert refusal.value.sqlstate == "22023"
    assert "'checkpoint'" in refusal.value.hint


def test_the_plan_is_refused_below_its_peak():
    needed_nbytes = _made("checkpoint", plain(9)).budget_nbytes
    assert _made("checkpoint", plain(9), needed_nbytes).budget_nbytes == needed_nbytes
    with pytest.raises(DoesNotFit) as refusal:
        _made("checkpoint", plain(9), needed_nbytes - 1)
    assert refusal.value.needed_nbytes == needed_nbytes
    assert "the policy auto" in refusal.value.hint


@given(data=st.data())
@examples(80)
def test_the_replay_of_a_plan_gives_the_predicted_peak_and_time(data):
    graph = data.draw(convolutional_graphs(max_layers=12))
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)), policy="checkpoint")
    plan_and_replay(job, data.draw(devices()))
