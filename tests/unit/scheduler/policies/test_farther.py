"""Recomputations that reach farther back are tried one by one, from a plan that is there already."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.gaps import RECOMPUTE, STAY, SWAP, carried
from tensile_db.scheduler.choosing.ways import USUAL_WAY
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Recompute
from tensile_db.scheduler.policies import alone, farther, vanilla
from tensile_db.scheduler.policies.drafts import Drafter
from tensile_db.scheduler.policies.farther import Farther
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples, one_in
from tests.graphs.hand_made import device_of
from tests.graphs.skip_connections import SkipConnections
from tests.plans.drafted_jobs import drafted, stalling_jobs, tight_jobs
from tests.plans.replayed_plans import timeline_of


def _skips(levels):
    """Return the network, its job, and a device with 0.6 of eager's peak and a slow link."""
    network = SkipConnections(levels, map_nbytes=2**14)
    graph = network.graph
    job = JobRequest(job_id=1, graph=graph, latencies_ns=network.latencies_ns)
    budget_nbytes = vanilla.peak_nbytes(graph) * 6 // 10
    assert budget_nbytes > lower_bound_peak_nbytes(graph)
    return network, job, device_of(budget_nbytes, 50_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("levels", one_in(2, [4, 6]))
def test_a_network_with_skip_connections_is_faster_by_them(monkeypatch, levels):
    network, job, device = _skips(levels)
    (made,) = plan_jobs([job], device)
    monkeypatch.setattr(alone, "_WORTH_GOING_FAR", np.inf)
    (near,) = plan_jobs([job], device)
    gained = near.prediction.time_ns / made.prediction.time_ns - 1
    assert gained > 0.005
    # What joins both halves is made again, of what is needed only much later.
    joined = {event.tensor for event in made.plan.events if isinstance(event, Recompute)}
    assert joined & {*network.joined.values(), *network.active}


@pytest.mark.slow
@given(stalling_jobs())
@examples(60)
def test_plans_are_no_slower_within_the_budget_and_the_same_each_time(drawn):
    job, device, budget_nbytes = drawn
    drafter, made = drafted(*drawn)
    found = Farther(drafter, budget_nbytes, made).better()
    event(f"faster: {found.period_ns < made.period_ns}")
    assert found.period_ns <= made.period_ns
    assert found.period_ns == timeline_of(job.graph, job.latencies_ns, found.plan, device).period_ns
    assert lower(job.graph, found.plan).guaranteed_peak_nbytes <= budget_nbytes
    drafter, made = drafted(*drawn)
    assert Farther(drafter, budget_nbytes, made).better().plan == found.plan


@pytest.mark.thorough
def test_a_drift_that_costs_a_small_job_a_little_is_enough_to_look_for_a_better_plan():
    _, job, device = _skips(5)
    (first,) = plan_jobs([job], device)
    slower = replace(
        device,
        d2h_bytes_per_s=device.d2h_bytes_per_s * 4 // 5,
        h2d_bytes_per_s=device.h2d_bytes_per_s * 4 // 5,
    )
    (again,) = plan_jobs([replace(job, former=first.as_former)], slower)
    # What was found is lost, and of a larger job that would have to do.
    assert 1.02 < again.prediction.time_ns / first.prediction.time_ns < 1.08
    assert again.quick
    (better,) = plan_jobs([replace(job, former=again.as_former, improving=True)], slower)
    assert better.prediction.time_ns < 0.96 * again.prediction.time_ns


@pytest.mark.slow
@pytest.mark.parametrize("effort", [farther.THOROUGH, farther.GLANCE])
def test_the_fastest_of_all_plans_on_the_way_is_taken(monkeypatch, effort):
    _, job, device = _skips(6)
    drafter, made = drafted(job, device, device.memory_nbytes)
    took_ns = []
    with_choices = drafter.with_choices

    def timed(*args):
        found = with_choices(*args)
        took_ns.append(found.period_ns)
        return found

    monkeypatch.setattr(drafter, "with_choices", timed)
    found = Farther(drafter, device.memory_nbytes, made).better(effort)
    assert len(took_ns) > 1
    assert found.period_ns == min(made.period_ns, *took_ns)


def test_a_job_of_many_gaps_is_left_as_it_is(monkeypatch):
    _, job, device = _skips(4)
    drafter, made = drafted(job, device, device.memory_nbytes)
    monkeypatch.setattr(farther, "FEW_GAPS", 3)
    monkeypatch.setattr(farther, "search", None)
    assert Farther(drafter, device.memory_nbytes, made).better() is made


@given(tight_jobs(), st.data())
@examples(100)
def test_a_way_may_say_which_recomputations_there_are(drawn, data):
    job, device, budget_nbytes = drawn
    drafter = Drafter(job, device, budget_nbytes, 1)
    order = tuple(op.id for op in job.graph.ops)

    def keys_of(way):
        gaps = drafter.nothing_chosen(order, way)[2].gaps
        found = np.nonzero(gaps.may_recompute)[0].tolist()
        return gaps, {(gaps.all[index].tensor, order[gaps.all[index].following]) for index in found}

    # All that there might be, far or near.
    _, every = keys_of(replace(USUAL_WAY, reach=1.0))
    some = frozenset(data.draw(st.sets(st.sampled_from(sorted(every))))) if every else frozenset()
    _, left = keys_of(replace(USUAL_WAY, only=some))
    assert left <= some
    assert keys_of(replace(USUAL_WAY, only=frozenset()))[1] == set()


@given(tight_jobs(), st.data())
@examples(100)
def test_choices_are_carried_to_gaps_among_other_candidates(drawn, data):
    job, device, budget_nbytes = drawn
    drafter = Drafter(job, device, budget_nbytes, 1)
    order = tuple(op.id for op in job.graph.ops)
    gaps = drafter.nothing_chosen(order, replace(USUAL_WAY, reach=1.0))[2].gaps
    chosen = [
        data.draw(st.sampled_from((STAY, SWAP, RECOMPUTE) if may_recompute else (STAY, SWAP)))
        for may_recompute in gaps.may_recompute.tolist()
    ]
    assert carried(chosen, gaps, gaps) == chosen
    none = drafter.nothing_chosen(order, replace(USUAL_WAY, only=frozenset()))[2].gaps
    for gap, choice in zip(none.all, carried(chosen, gaps, none), strict=True):
        within = [
            before
            for other, before in zip(gaps.all, chosen, strict=True)
            if other.tensor == gap.tensor
            and other.previous < gap.following
            and gap.previous < other.following
        ]
        # There is nothing to recompute; whatever was away for a part stays away for the whole.
        assert choice == (SWAP if any(before != STAY for before in within) else STAY)
