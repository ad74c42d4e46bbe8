"""Plans with splits, of tsplit and auto, through the executor: in less memory than whole ops need.

How far sums in parts may be from eager PyTorch's is tested in tests/unit/capture/test_split_step.py.
"""

from dataclasses import replace

import pytest

from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.packing.packed_graph import known_packed_graph
from tensile_db.scheduler.plan import SwapOut
from tensile_db.scheduler.plan_json import plan_from_json, plan_to_json
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.packing import worth_packing
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import packed_graph
from tests.examples import one_in
from tests.plans.oracle import replay
from tests.steps.bitwise_runs import as_planned, capture_once, differing, losses_of, train_eagerly, train_here
from tests.steps.small_networks import training_of, with_frozen_backbone
from tests.steps.split_values import summed_tensors

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]


#: Network, batch size, and the share of what the largest op needs; whether gradients are summed in parts.
CASES = [
    ("vgg with dropout", 128, 0.85, True),
    ("resnet", 32, 0.85, False),
    ("resnet", 32, 0.5, True),
    ("vit", 32, 0.85, False),
    # With tensors in blocks.
    ("resnet", 64, 0.3, True),
    ("transformer", 8, 0.3, True),
    ("gcn", 1024, 0.5, False),
]


def with_copy_engines(device):
    """Return the device's spec without what copies cost the cores, which decides what tsplit splits."""
    return replace(device.spec, copies_cost_bytes_per_s=0)


def planned(network, size, share, device, optimizer="momentum", policy="tsplit"):
    """Return training, step, first state, request and plan, where no plan of the whole ops fits."""
    training = training_of(network.removesuffix(", frozen"), optimizer, size)
    if network.endswith(", frozen"):
        training = with_frozen_backbone(training)
    step, state = capture_once(training)
    spec = with_copy_engines(device)
    request = JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=predict_latencies_ns(step.graph, spec),
        policy=policy,
        memory_limit_nbytes=int(share * _bound_nbytes(step.graph, policy)),
    )
    (plan,) = plan_jobs([request], spec)
    return training, step, state, request, plan


def _bound_nbytes(graph, policy):
    """Return what no plan of whole ops can do without; `auto` may pack."""
    if policy == "tsplit":
        return lower_bound_peak_nbytes(graph)
    packed = known_packed_graph(graph, worth_packing(graph)).graph
    return min(lower_bound_peak_nbytes(each) for each in (graph, packed))


@pytest.mark.parametrize(
    ("network", "size", "share", "sums", "policy"),
    one_in(6, [(*case, policy) for case in CASES for policy in ("tsplit", "auto")]),
)
def test_training_fits_where_no_plan_of_whole_ops_does(make_device, network, size, share, sums, policy):
    device = make_device(1 << 32)
    training, step, state, request, plan = planned(network, size, share, device, policy=policy)
    with pytest.raises(DoesNotFit):
        plan_jobs([_by(request, "tensile")], device.spec)
    in_parts = as_planned(step, plan, device)
    got, results = train_here(device, in_parts, _copy(state), plan.program, training.batches())
    peaks = [result.peak_nbytes for result in results]
    assert max(peaks) <= plan.program.guaranteed_peak_nbytes <= request.memory_limit_nbytes
    assert bool(summed_tensors(packed_graph(step.graph, plan.plan.rewriting), plan.plan.splits)) == sums
    # The same calls with all the memory in the world.
    roomy = lower(in_parts.graph, vanilla.plan_one(in_parts.graph))
    want, roomy_results = train_here(device, in_parts, _copy(state), roomy, training.batches(), job=2)
    assert differing(got, want) == []
    assert losses_of(results) == losses_of(roomy_results)
    eager, losses = train_eagerly(training)
    assert sums or (differing(got, eager), losses_of(results)) == ([], losses)
    assert losses_of(results)[0] == losses[0]


def test_a_frozen_backbone_goes_forward_in_parts_to_eagers_bits(make_device):
    device = make_device(1 << 32)
    training, step, state, request, plan = planned("resnet, frozen", 32, 0.6, device, policy="auto_exact")
    assert plan.plan.splits
    in_parts = as_planned(step, plan, device)
    got, results = train_here(device, in_parts, _copy(state), plan.program, training.batches())
    assert max(result.peak_nbytes for result in results) <= request.memory_limit_nbytes
    eager, losses = train_eagerly(training)
    assert (differing(got, eager), losses_of(results)) == ([], losses)


@pytest.mark.parametrize(
    ("network", "size", "share"),
    one_in(3, [("resnet", 32, 0.8), ("resnet", 32, 0.9), ("vgg with dropout", 128, 0.88)]),
)
def test_what_is_split_for_auto_exact_trains_to_eagers_bits(make_device, network, size, share):
    device = make_device(1 << 32)
    training, step, state, request, plan = planned(network, size, share, device, policy="auto_exact")
    assert plan.plan.splits
    assert any(isinstance(event, SwapOut) for event in plan.plan.events)
    in_parts = as_planned(step, plan, device)
    got, results = train_here(device, in_parts, _copy(state), plan.program, training.batches())
    assert max(result.peak_nbytes for result in results) <= request.memory_limit_nbytes
    eager, losses = train_eagerly(training)
    assert (differing(got, eager), losses_of(results)) == ([], losses)


def test_a_replay_of_the_plan_gives_what_was_predicted(make_device):
    device = make_device(1 << 32)
    *_, request, plan = planned("resnet", 32, 0.5, device)
    spec = with_copy_engines(device)
    document = plan_to_json(
        request.graph, request.latencies_ns, spec, plan.plan, plan.prediction, plan.timeline
    )
    seen = replay(document, iterations=6)
    assert seen.peak_nbytes == plan.prediction.peak_nbytes <= plan.budget_nbytes
    assert seen.period_ns == plan.prediction.time_ns
    assert plan_from_json(document) == plan.plan


def test_what_auto_splits_does_not_depend_on_the_rates_measured_as_a_worker_starts(make_device):
    spec = make_device(1 << 32).spec
    step, _ = capture_once(training_of("vgg with dropout", "momentum", 32))
    request = JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=[1000] * len(step.graph.ops),
        memory_limit_nbytes=int(0.95 * lower_bound_peak_nbytes(step.graph)),
    )
    other = replace(spec, flops_per_s=10**13, memory_bytes_per_s=10**8, op_overhead_ns=0)
    (made,), (restarted,) = plan_jobs([request], spec), plan_jobs([request], other)
    assert made.plan.splits
    assert made.plan.splits == restarted.plan.splits


def test_what_no_split_can_do_with_is_refused_with_what_would_do(make_device):
    device = make_device(1 << 32)
    with pytest.raises(DoesNotFit) as refusal:
        planned("vit", 32, 0.3, device)
    needed = refusal.value.needed_nbytes
    step, _ = capture_once(training_of("vit", "momentum", 32))
    share = needed / lower_bound_peak_nbytes(step.graph)
    assert 0.3 < share < 1
    *_, plan = planned("vit", 32, share + 1e-6, device)
    assert plan.budget_nbytes <= needed + 1


def _by(request, policy):
    return JobRequest(
        job_id=1,
        graph=request.graph,
        latencies_ns=request.latencies_ns,
        policy=policy,
        memory_limit_nbytes=request.memory_limit_nbytes,
    )


def _copy(state):
    return {name: value.clone() for name, value in state.items()}
