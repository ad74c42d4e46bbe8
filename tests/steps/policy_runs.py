"""A captured network trained by the plan of a policy, which must be that policy's, and give eager's bits."""

from copy import deepcopy

from tensile_db.capture.packed_step import planned_step
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Recompute, SwapOut
from tensile_db.scheduler.policies import UNBUDGETED, capuchin, vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import packed_graph
from tensile_db.scheduler.splitting.ways import keep_bits
from tests.plans.replayed_plans import replay_of
from tests.steps.bitwise_runs import differing, losses_of, train_here

#: Whether a policy's plans swap, whether they recompute; None, and where a policy is left out: as it comes.
ACTS = {
    "vanilla": (False, False),
    "vdnn_conv": (True, False),
    "vdnn_all": (True, False),
    "checkpoint": (False, True),
    "checkpoint_articulation": (False, True),
    "superneurons": (None, True),
    "superneurons_memory": (None, True),
    "tensile": (True, None),
}


def train_by_policy(device, policy, step, state, batches, eager):
    """Train by a policy's plan; eager: returns the bits that eager PyTorch trains to, and its losses."""
    request = JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=predict_latencies_ns(step.graph, device.spec),
        policy=policy,
        memory_limit_nbytes=None if policy in UNBUDGETED else halfway_nbytes(step.graph),
    )
    (made,) = plan_jobs([request], device.spec)
    assert request.memory_limit_nbytes is None or made.budget_nbytes <= request.memory_limit_nbytes
    seen = replay_of(request, made, device.spec, iterations=6)
    assert (seen.peak_nbytes, seen.period_ns) == (made.prediction.peak_nbytes, made.prediction.time_ns)
    for kind, expected in zip((SwapOut, Recompute), ACTS.get(policy, (None, None)), strict=True):
        assert expected in (None, any(isinstance(event, kind) for event in made.plan.events))
    in_parts = planned_step(step, made.plan.rewriting, device.torch_device)
    got, results = train_here(device, in_parts, deepcopy(state), made.program, batches)
    assert all(result.peak_nbytes <= made.program.guaranteed_peak_nbytes for result in results)
    if not keep_bits(packed_graph(step.graph, made.plan.rewriting), made.plan.splits):
        # Sums over parts are rounded otherwise than eager's, but alike whatever is swapped.
        roomy = lower(in_parts.graph, vanilla.plan_one(in_parts.graph))
        want, others = train_here(device, in_parts, deepcopy(state), roomy, batches, job=2)
        losses = losses_of(others)
    else:
        want, losses = eager()
    assert differing(got, want) == []
    assert losses_of(results) == losses


def halfway_nbytes(graph):
    """Return a budget between what every policy that has one can meet, and what eager PyTorch holds."""
    return (capuchin.least_nbytes(graph) + vanilla.peak_nbytes(graph)) // 2
