"""SuperNeurons: outputs of convolutions are swapped, what is cheap runs again from them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile_db.errors import DoesNotFit
from tensile_db.graph import Phase, Role, StepGraph
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples
from tests.graphs.hand_made import device_of, graph_of
from tests.graphs.networks_by_hand import convolutional, plain
from tests.graphs.random_graphs import convolutional_graphs, devices, latencies_for
from tests.plans.plan_events import recomputed, swapped
from tests.plans.replayed_plans import plan_and_replay

BOTH = ("superneurons", "superneurons_memory")


def _made(policy: str, graph: StepGraph, memory_nbytes: int = 10**6):
    job = JobRequest(job_id=1, graph=graph, latencies_ns=[1000] * len(graph.ops), policy=policy)
    (made,) = plan_jobs([job], device_of(memory_nbytes))
    return made


@pytest.mark.parametrize("policy", BOTH)
def test_convolutions_outputs_are_swapped_and_batch_norms_with_relu_run_again(policy):
    made = _made(policy, convolutional())
    assert swapped(made.plan) == [2, 5, 8, 11]
    assert recomputed(made.plan) == [
        (17, 12, (11, 12)),
        (19, 9, (8, 9)),
        (22, 6, (5, 6)),
        (25, 3, (2, 3)),
    ]


def test_speed_centric_layers_come_back_together_and_memory_centric_ones_each_from_the_convolution():
    assert recomputed(_made("superneurons", _three_cheap()).plan) == [
        (10, 3, (2,)),
        (10, 4, (3,)),
        (10, 5, (4,)),
    ]
    assert recomputed(_made("superneurons_memory", _three_cheap()).plan) == [
        (10, 5, (2, 3, 4)),
        (11, 4, (2, 3)),
        (12, 3, (2,)),
    ]


def test_layers_too_large_to_come_back_together_are_memory_centric():
    # With small gradients the largest ops read 100 B and write 100 B: less than three tensors.
    assert recomputed(_made("superneurons", _three_cheap(gradient_nbytes=1)).plan) == [
        (10, 5, (2, 3, 4)),
        (11, 4, (2, 3)),
        (12, 3, (2,)),
    ]


def _three_cheap(gradient_nbytes: int = 100) -> StepGraph:
    """Return two convolutions with three cheap layers between them, each read again by its own backward op.

    0 input, 1 loss, 2 convolved, 3 normalized, 4 pooled, 5 normalized again, 6 convolved again, then
    gradients.
    """
    forward, backward, activation = Phase.FORWARD, Phase.BACKWARD, Role.ACTIVATION
    tensors = [(1, Role.INPUT), (1, Role.OUTPUT), *((100, activation),) * 4, (1, activation)]
    tensors += [(gradient_nbytes, activation)] * 6
    return graph_of(
        tensors,
        [
            ("tensile.load_batch", forward, [], [0], False),
            ("aten.convolution.default", forward, [0], [2], True),
            ("aten.native_batch_norm.default", forward, [2], [3], True),
            ("aten.avg_pool2d.default", forward, [3], [4], True),
            ("aten.native_batch_norm.default", forward, [4], [5], True),
            ("aten.convolution.default", forward, [5], [6], True),
            ("aten.relu_.default", forward, [6], [6], True),
            ("loss", forward, [6], [1], True),
            ("loss_backward", backward, [6], [7], True),
            ("threshold_backward", backward, [6, 7], [8], True),
            ("aten.convolution_backward.default", backward, [5, 8], [9], True),
            ("norm_backward", backward, [4, 9], [10], True),
            ("pool_backward", backward, [3, 10], [11], True),
            ("norm_backward", backward, [2, 11], [12], True),
            ("tensile.report", Phase.OPTIMIZER, [1], [], False),
        ],
    )


@pytest.mark.parametrize("policy", BOTH)
def test_a_join_of_two_feature_maps_is_swapped_like_a_convolutions_output(policy):
    forward, backward, activation = Phase.FORWARD, Phase.BACKWARD, Role.ACTIVATION
    graph = graph_of(
        [(100, Role.INPUT), (1, Role.OUTPUT), *((100, activation),) * 8],
        [
            ("tensile.load_batch", forward, [], [0], False),
            ("aten.convolution.default", forward, [0], [2], True),
            ("aten.convolution.default", forward, [2], [3], True),
            ("aten.add.Tensor", forward, [2, 3], [4], True),
            ("aten.convolution.default", forward, [4], [5], True),
            ("aten.convolution.default", forward, [5], [6], True),
            ("loss", forward, [6], [1], True),
            ("aten.convolution_backward.default", backward, [5, 6], [7], True),
            ("aten.convolution_backward.default", backward, [6, 7], [8], True),
            ("aten.convolution_backward.default", backward, [4, 8], [9], True),
            ("tensile.report", Phase.OPTIMIZER, [1], [], False),
        ],
    )
    made = _made(policy, graph)
    assert swapped(made.plan) == [4]
    assert recomputed(made.plan) == []


@pytest.mark.parametrize("policy", BOTH)
def test_products_of_matrices_stay(policy):
    graph = plain(4)
    targets = {1: "aten.addmm.default", 3: "aten.addmm.default"}
    ops = tuple(replace(op, target=targets.get(op.id, op.target)) for op in graph.ops)
    made = _made(policy, StepGraph(tensors=graph.tensors, ops=ops))
    assert swapped(made.plan) == []
    assert [tensor for _, tensor, _ in recomputed(made.plan)] == [2]


def test_the_plan_is_refused_below_its_peak():
    needed_nbytes = _made("superneurons", convolutional()).budget_nbytes
    with pytest.raises(DoesNotFit) as refusal:
        _made("superneurons", convolutional(), needed_nbytes - 1)
    assert refusal.value.needed_nbytes == needed_nbytes
    assert "the policy auto" in refusal.value.hint


@pytest.mark.parametrize("policy", BOTH)
@given(data=st.data())
@examples(60)
def test_the_replay_of_a_plan_gives_the_predicted_peak_and_time(policy, data):
    graph = data.draw(convolutional_graphs(max_layers=10))
    latencies_ns = data.draw(latencies_for(graph))
    job = JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy)
    plan_and_replay(job, data.draw(devices()))
