"""Capuchin: swaps while they hide, then the cheaper of swap and recomputation, within the budget."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.errors import DoesNotFit
from tensile_db.graph import OpId, Phase, Role, StepGraph, TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import SwapIn
from tensile_db.scheduler.policies.capuchin import least_nbytes
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble
from tensile_db.scheduler.settling.collective import plan_collectively
from tensile_db.scheduler.settling.feedback import trigger_earlier
from tensile_db.scheduler.timeline import simulate
from tests.examples import examples
from tests.graphs.hand_made import chain, device_of, graph_of
from tests.graphs.networks_by_hand import plain
from tests.graphs.random_graphs import convolutional_graphs, devices, latencies_for
from tests.plans.plan_events import recomputed, swapped
from tests.plans.replayed_plans import plan_and_replay, replay_of


def _request(graph: StepGraph, latency_ns: int = 1000, **changes: object) -> JobRequest:
    job = JobRequest(job_id=1, graph=graph, latencies_ns=[latency_ns] * len(graph.ops), policy="capuchin")
    return replace(job, **changes)


def _made(graph: StepGraph, memory_nbytes: int, bytes_per_s: int = 10**9, **changes: object):
    (made,) = plan_jobs([_request(graph, **changes)], device_of(memory_nbytes, bytes_per_s))
    return made


def test_nothing_is_done_when_everything_fits():
    made = _made(plain(6), 10**6)
    assert (swapped(made.plan), recomputed(made.plan)) == ([], [])


def test_the_longest_free_time_is_swapped_first_while_copies_hide():
    # Of the input (10 B) and the feature maps (100 B), 0 and 1 are needed again last; a copy takes a tenth
    # of an op.
    made = _made(plain(6), 711)
    assert made.prediction.vanilla_peak_nbytes == 811
    assert (swapped(made.plan), recomputed(made.plan)) == ([0, 1], [])
    assert made.prediction.eor == 1.0


def test_what_a_copy_cannot_hide_is_recomputed_where_that_is_cheaper():
    # A copy of 100 B takes 100 us, an op 1 us.
    made = _made(plain(6), 711, bytes_per_s=10**6)
    assert swapped(made.plan) == []
    assert recomputed(made.plan) == [(12, 1, (1,))]
    assert made.prediction.time_ns == made.prediction.vanilla_time_ns + 1000


def test_what_a_copy_cannot_hide_is_swapped_where_recomputation_takes_longer():
    graph = plain(6)
    # Making a feature map takes 100 us, a copy of it 50 us.
    latencies_ns = [100_000 if 1 <= op.id <= 6 else 1000 for op in graph.ops]
    made = _made(graph, 711, bytes_per_s=2 * 10**6, latencies_ns=latencies_ns)
    assert (swapped(made.plan), recomputed(made.plan)) == ([0, 1, 7], [])
    assert made.prediction.time_ns == made.prediction.vanilla_time_ns + 52_000


def test_recomputation_goes_back_further_where_its_source_is_recomputed_too():
    made = _made(plain(6), 511, bytes_per_s=10**5)
    assert recomputed(made.plan) == [(9, 4, (3, 4)), (10, 3, (3,)), (12, 1, (1,))]


def _recomputed_collectively(budget_nbytes: int) -> list[tuple[int, int, tuple[int, ...]]]:
    graph = plain(6)
    gaps = {
        TensorId(k): Gap(tensor=TensorId(k), previous=k + 1, following=13 - k, ops=len(graph.ops))
        for k in (3, 4)
    }
    fresh = [Residency(graph, [1000] * len(graph.ops)) for _ in range(2)]
    planned = plan_collectively(fresh, [], gaps, budget_nbytes)
    return recomputed(assemble(planned, "test"))


def test_what_a_recomputation_passes_through_stays_if_memory_allows():
    assert _recomputed_collectively(10**6) == [(9, 3, (3,)), (9, 4, (4,))]
    assert _recomputed_collectively(611) == [(9, 4, (3, 4)), (10, 3, (3,))]


def test_parameters_and_optimizer_state_stay():
    graph = chain(state_nbytes=50)
    least = least_nbytes(graph)
    # 70 B of parameters and state; op 5 reads 120 B and makes 110 B beside them, of which 20 B are parameter
    # b's.
    assert least == 70 + 100 + 20 + 110
    made = _made(graph, least)
    assert made.program.start_on_host == ()
    with pytest.raises(DoesNotFit) as refusal:
        _made(graph, least - 1)
    assert refusal.value.needed_nbytes == least
    assert "the policy auto" in refusal.value.hint


def _late_by_two_ops() -> Residency:
    """Return a plan in which tensor 1, of 2 us a copy, is on its way back only when op 12 is due."""
    graph = plain(6)
    residency = Residency(graph, [1000] * len(graph.ops))
    gap = Gap(tensor=TensorId(1), previous=2, following=12, ops=len(graph.ops))
    residency.add(Absence(gap=gap, begin=6, end=12, out_position=2))
    return residency


@pytest.mark.parametrize(
    ("budget_nbytes", "trigger", "delta_ns"),
    # Op 10 holds 511 B without tensor 1, op 11 holds 411 B.
    [(10**6, 9, 0), (611, 9, 0), (610, 10, 0), (510, 11, 0)],
)
def test_feedback_triggers_a_late_copy_earlier_but_not_where_memory_is_short(
    budget_nbytes, trigger, delta_ns
):
    residency, device = _late_by_two_ops(), device_of(10**6, bytes_per_s=5 * 10**7)
    latencies_ns = [1000] * len(residency.graph.ops)
    timeline = simulate(residency.graph, latencies_ns, assemble(residency, "test"), device)
    assert timeline.period_ns == sum(latencies_ns) + 2000
    moved = trigger_earlier(residency, Link(device), timeline, budget_nbytes)
    assert moved is (trigger < 11)
    back = SwapIn(tensor=TensorId(1), trigger_op=OpId(trigger), delta_ns=delta_ns)
    assert back in assemble(residency, "test").events


def test_jobs_planned_together_fit_the_device_together():
    graphs = [plain(8), plain(6)]
    jobs = [_request(graph, job_id=number) for number, graph in enumerate(graphs)]
    device = device_of(1300)
    made = plan_jobs(jobs, device)
    assert sum(plan.budget_nbytes for plan in made) <= 1300
    for job, plan in zip(jobs, made, strict=True):
        assert replay_of(job, plan, device).peak_nbytes <= plan.budget_nbytes
    with pytest.raises(DoesNotFit):
        plan_jobs(jobs, device_of(sum(map(least_nbytes, graphs)) - 1))


def test_random_ops_are_swapped_but_never_recomputed():
    forward = Phase.FORWARD
    graph = graph_of(
        [(10, Role.INPUT), *((100, Role.ACTIVATION),) * 3, (1, Role.OUTPUT)],
        [
            ("tensile.load_batch", forward, [], [0], False),
            ("bernoulli_", forward, [0], [1], False),
            ("wide", forward, [0], [2], True),
            ("wider", forward, [2], [3], True),
            ("loss", forward, [1, 3], [4], True),
            ("tensile.report", Phase.OPTIMIZER, [4], [], False),
        ],
    )
    made = _made(graph, 211, bytes_per_s=10**6)
    assert swapped(made.plan) == [1]
    assert recomputed(made.plan) == []


@given(data=st.data())
@examples(120)
def test_the_replay_of_a_plan_gives_the_predicted_peak_and_time_within_the_budget(data):
    graph = data.draw(convolutional_graphs(max_layers=10))
    job = _request(graph, latencies_ns=data.draw(latencies_for(graph)))
    device = data.draw(devices())
    (free,) = plan_jobs([job], device)
    least = least_nbytes(graph)
    budget_nbytes = data.draw(st.integers(least, max(least, free.prediction.peak_nbytes)))
    made = plan_and_replay(job, replace(device, memory_nbytes=budget_nbytes))
    assert made.budget_nbytes <= budget_nbytes
    stalls = made.prediction.time_ns > sum(job.latencies_ns)
    event("takes longer" if stalls else "hides everything")
