"""The published algorithms on graphs small enough to follow by hand."""

from dataclasses import replace

import pytest

from tensile_db.errors import DoesNotFit, UnknownName
from tensile_db.graph import OpId, Phase, Role, StepGraph, TensorId
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import Recompute, Release, SwapIn, SwapOut
from tensile_db.scheduler.policies import tensile
from tensile_db.scheduler.request import JobRequest
from tests.graphs.hand_made import chain, device_of, graph_of

HIDDEN = TensorId(3)


def _request(latency_ns: int = 1000, **changes: object) -> JobRequest:
    graph = changes.pop("graph", chain())
    job = JobRequest(job_id=1, graph=graph, latencies_ns=[latency_ns] * len(graph.ops), policy="tensile")
    return replace(job, **changes)


def _swapped(plan) -> set[TensorId]:
    return {event.tensor for event in plan.events if isinstance(event, SwapOut)}


def test_every_tensor_is_released_when_its_last_access_is_over():
    (made,) = plan_jobs([_request()], device_of(10**6, bytes_per_s=1))
    releases = {event.tensor: event.after_op for event in made.plan.events if isinstance(event, Release)}
    assert releases == {2: 6, 3: 5, 4: 4, 5: 9, 6: 5, 7: 6, 8: 7, 9: 8}
    assert _swapped(made.plan) == set()


def test_a_tensor_of_the_peak_that_idles_long_enough_is_swapped_behind_other_ops():
    (made,) = plan_jobs([_request()], device_of(10**6))
    # The peak is op 5.  Idle there are parameter a, the loss, and the input, which is read again at once.
    assert _swapped(made.plan) == {0, 5}
    assert made.prediction.eor == 1.0
    assert made.prediction.guaranteed_peak_nbytes == 291 - 10 - 1


def test_optimizer_state_is_swapped_across_the_iterations_end():
    graph = chain(state_nbytes=50)
    (made,) = plan_jobs([_request(graph=graph)], device_of(10**6))
    # Its one access is op 8: it leaves behind op 9, and comes back behind op 7 of the next iteration.
    assert made.program.start_on_host == (10,)
    assert SwapOut(tensor=TensorId(10), trigger_op=8, delta_ns=0) in made.plan.events
    assert SwapIn(tensor=TensorId(10), trigger_op=6, delta_ns=950) in made.plan.events
    assert made.prediction.guaranteed_peak_nbytes == 291 - 10 - 1


def test_recomputation_begins_only_where_swaps_leave_the_peak_above_the_memory():
    slow = device_of(10**6, bytes_per_s=10**3)
    (ample,) = plan_jobs([_request()], slow)
    (short,) = plan_jobs([_request(graph=_diamond())], replace(slow, memory_nbytes=220))
    assert not any(isinstance(event, Recompute) for event in ample.plan.events)
    assert Recompute(tensor=TensorId(2), before_op=OpId(5), ops=(OpId(2),)) in short.plan.events
    assert short.prediction.time_ns == 8 * 1000


def _diamond() -> StepGraph:
    """Return a step in which tensor 2 (100 B), cheap to make from tensor 1, idles over the peak, op 4."""
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    return graph_of(
        [(1, Role.PARAMETER), (10, Role.INPUT), *((100, Role.ACTIVATION),) * 3, (1, Role.OUTPUT)],
        [
            ("tensile.load_batch", forward, [], [1], False),
            ("touch", forward, [0], [5], True),
            ("cheap", forward, [1], [2], True),
            ("wide", forward, [2], [3], True),
            ("wider", forward, [3], [4], True),
            ("join", backward, [1, 2, 4], [5], True),
            ("tensile.report", Phase.OPTIMIZER, [5], [], False),
        ],
    )


def test_budgets_that_nothing_hides_for_are_met_by_passive_swaps_that_stall():
    slow = device_of(240, bytes_per_s=10**7)
    (made,) = plan_jobs([_request()], slow)
    assert made.budget_nbytes <= 240
    assert made.prediction.eor > 1


def test_the_refusal_names_the_least_memory_that_would_do():
    with pytest.raises(DoesNotFit) as refusal:
        plan_jobs([_request()], device_of(239))
    # Op 5 reads b, the hidden and the output's gradient, and makes two gradients.
    assert refusal.value.needed_nbytes == 240
    assert refusal.value.sqlstate == "53200"


def test_a_jobs_own_limit_binds_as_the_devices_memory_does():
    (made,) = plan_jobs([_request(memory_limit_nbytes=245)], device_of(10**6, bytes_per_s=10**7))
    assert made.budget_nbytes <= 245
    with pytest.raises(DoesNotFit):
        plan_jobs([_request(memory_limit_nbytes=239)], device_of(10**6))


def test_the_max_swapping_rate_keeps_a_job_to_its_share_of_all_swaps():
    jobs = [_request(job_id=1, max_swapping_rate=0.25), _request(job_id=2)]
    first, second = tensile.plan(jobs, device_of(10**6), 10**6)
    assert (len(_swapped(first)), len(_swapped(second))) == (1, 2)
    free, beside = tensile.plan(
        [replace(job, max_swapping_rate=1.0) for job in jobs], device_of(10**6), 10**6
    )
    assert (len(_swapped(free)), len(_swapped(beside))) == (2, 2)


def test_a_single_job_is_not_bound_by_its_max_swapping_rate():
    (free,) = plan_jobs([_request()], device_of(10**6))
    (bound,) = plan_jobs([_request(max_swapping_rate=0.1)], device_of(10**6))
    assert bound.plan == free.plan


def test_vanilla_jobs_keep_what_they_hold_and_the_others_share_the_rest():
    jobs = [_request(job_id=1), _request(job_id=2, policy="vanilla")]
    first, second = plan_jobs(jobs, device_of(291 + 240, bytes_per_s=10**8))
    assert second.budget_nbytes == 291
    assert first.budget_nbytes <= 240
    with pytest.raises(DoesNotFit, match="but the budget is 239 B"):
        plan_jobs(jobs, device_of(291 + 239))


def test_an_unknown_policy_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownName) as refusal:
        plan_jobs([_request(policy="tensil")], device_of(10**6))
    assert refusal.value.hint == 'Did you mean "tensile"?'


def test_a_plan_that_gives_up_its_recomputations_is_not_dropped_for_what_they_would_take():
    forward = Phase.FORWARD
    graph = graph_of(
        [(10, Role.PARAMETER), (50, Role.PARAMETER), (20, Role.ACTIVATION), (100, Role.ACTIVATION)],
        [
            ("first", forward, [0, 1], [2], True),
            ("second", forward, [0], [3], True),
            ("third", forward, [2, 3], [], True),
            ("fourth", forward, [1, 2, 3], [], True),
        ],
    )
    job, device = _request(graph=graph), device_of(170, bytes_per_s=10**8)
    (whole,) = tensile.plan([job], device, 170)
    (made,) = plan_jobs([job], device)
    assert not any(isinstance(event, Recompute) for event in whole.events)
    assert tensile.plan_if_faster(job, device, 170, made.prediction.time_ns + 1, both=False) == whole
