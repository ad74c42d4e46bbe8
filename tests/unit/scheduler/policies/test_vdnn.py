"""vDNN: which feature maps leave, what waits for them, and when they come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile_db.errors import DoesNotFit, InvalidRequest
from tensile_db.graph import OpId, Phase, StepGraph, TensorId
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import SwapIn, SwapOut, Wait
from tensile_db.scheduler.policies import vdnn
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples
from tests.graphs.hand_made import chain, device_of
from tests.graphs.networks_by_hand import convolutional
from tests.graphs.random_graphs import convolutional_graphs, devices, latencies_for
from tests.plans.plan_events import swapped
from tests.plans.replayed_plans import plan_and_replay


def _request(policy: str, graph: StepGraph | None = None) -> JobRequest:
    graph = graph or convolutional()
    return JobRequest(job_id=1, graph=graph, latencies_ns=[1000] * len(graph.ops), policy=policy)


def _plan(policy: str):
    plan_one = {"vdnn_conv": vdnn.plan_one_conv, "vdnn_all": vdnn.plan_one_all}[policy]
    # A copy takes two and a half ops.
    return plan_one(_request(policy), device_of(10**6, bytes_per_s=4 * 10**7), 10**6, 1)


def test_vdnn_conv_swaps_what_convolutions_read():
    assert swapped(_plan("vdnn_conv")) == [0, 3, 6, 9]


def test_vdnn_all_swaps_what_batch_norms_read_too_but_neither_statistics_nor_the_classifiers_input():
    assert swapped(_plan("vdnn_all")) == [0, 2, 3, 5, 6, 8, 9, 11]


def test_a_copy_runs_beside_one_layer_and_the_next_layer_waits_for_it():
    events = _plan("vdnn_conv").events
    # Tensor 3 is last read by the convolution of layer 1, op 4; the convolution of layer 2 is op 7.
    assert SwapOut(tensor=TensorId(3), trigger_op=OpId(4)) in events
    assert Wait(tensor=TensorId(3), before_op=OpId(8)) in events


def test_the_backward_pass_copies_back_one_layer_ahead():
    events = _plan("vdnn_conv").events
    # The backward pass needs tensor 3 in layer 0's and layer 1's ops, from op 25 on, the
    # convolution_backward of layer 1.  The layer before, layer 2's, begins after the convolution_backward of
    # layer 3, op 19.
    assert SwapIn(tensor=TensorId(3), trigger_op=OpId(19)) in events
    assert SwapIn(tensor=TensorId(0), trigger_op=OpId(22)) in events


def test_copies_longer_than_a_layer_stall_the_next_one():
    graph = convolutional()
    # A copy takes 5 us, the three ops beside it 3 us.
    (made,) = plan_jobs([_request("vdnn_conv", graph)], device_of(10**6, bytes_per_s=2 * 10**7))
    (quick,) = plan_jobs([_request("vdnn_conv", graph)], device_of(10**6, bytes_per_s=10**9))
    assert quick.prediction.eor == 1.0
    # Three copies out are 2 us longer than the three ops beside them; the last is 3 us longer than its two.
    out_ns = 3 * 2_000 + 3_000
    # The first copy back has four ops beside it, each of the other three arrives 2 us after its layer is due.
    back_ns = 1_000 + 3 * 2_000
    assert made.prediction.time_ns == 30_000 + out_ns + back_ns


def test_the_plan_is_the_same_for_any_memory_and_refused_below_its_peak():
    (ample,) = plan_jobs([_request("vdnn_conv")], device_of(10**6))
    (exact,) = plan_jobs([_request("vdnn_conv")], device_of(ample.budget_nbytes))
    assert exact.plan == ample.plan
    with pytest.raises(DoesNotFit) as refusal:
        plan_jobs([_request("vdnn_conv")], device_of(ample.budget_nbytes - 1))
    assert refusal.value.needed_nbytes == ample.budget_nbytes
    assert "the policy auto" in refusal.value.hint


@pytest.mark.parametrize("policy", ["vdnn_conv", "vdnn_all"])
def test_a_network_without_convolutions_is_refused_with_policies_that_would_do(policy):
    with pytest.raises(InvalidRequest, match="this network has none") as refusal:
        plan_jobs([_request(policy, chain())], device_of(10**6))
    assert refusal.value.sqlstate == "22023"
    assert "auto" in refusal.value.hint


@pytest.mark.parametrize("policy", ["vdnn_conv", "vdnn_all"])
def test_a_forward_pass_alone_is_left_as_it_is(policy):
    graph = chain()
    kept = tuple(op for op in graph.ops if op.phase is Phase.FORWARD)
    forward = StepGraph(tensors=graph.tensors, ops=kept)
    (made,) = plan_jobs([_request(policy, forward)], device_of(10**6))
    assert swapped(made.plan) == []


@pytest.mark.parametrize("policy", ["vdnn_conv", "vdnn_all"])
@given(data=st.data())
@examples(60)
def test_the_replay_of_a_plan_gives_the_predicted_peak_and_time(policy, data):
    graph = data.draw(convolutional_graphs())
    latencies_ns = data.draw(latencies_for(graph))
    job = JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy)
    plan_and_replay(job, data.draw(devices()))
