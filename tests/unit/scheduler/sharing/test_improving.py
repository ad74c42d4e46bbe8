"""A better plan for a job of several, within what it was granted."""

from dataclasses import replace

import pytest

from tensile_db.scheduler.sharing.improving import AsGood, improved
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tests.fixtures.drafts import job_of, within
from tests.steps.captured_steps import captured_step

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]


@pytest.fixture(scope="module")
def job():
    return job_of(captured_step("test_efficientnet", batch=32, side=96))


@pytest.fixture(scope="module")
def device(job):
    return within(job.graph, 0.9)


@pytest.fixture(scope="module")
def arrived(job, device):
    """The job, alone on its device until another one like it arrived, and the plans of both."""
    (before,) = plan_shared([job], device)
    asked = replace(job, former=before.job_plan.as_former)
    return asked, plan_shared([asked, replace(job, job_id=2)], device)


def test_who_arrives_gets_a_first_plan_and_who_must_make_room_a_quick_one(arrived):
    _, (first, second) = arrived
    assert (first.job_plan.quick, second.job_plan.quick) == (True, False)
    assert first.job_plan.plan.splits == second.job_plan.plan.splits


def test_the_better_plan_is_faster_and_fits_beside_the_others(arrived, device):
    job, (first, second) = arrived
    asked = replace(job, former=first.job_plan.as_former)
    better = improved(asked, first.within, first.share)
    assert better.job_plan.prediction.time_ns < first.job_plan.prediction.time_ns
    assert not better.job_plan.quick
    assert better.job_plan.plan.splits == first.job_plan.plan.splits
    assert better.job_plan.budget_nbytes <= better.share.budget_nbytes
    assert needed_nbytes([better.share, second.share]) <= device.memory_nbytes
    assert improved(asked, first.within, first.share).job_plan.plan == better.job_plan.plan
    # Of that one there is no better one.
    again = replace(job, former=better.job_plan.as_former)
    assert improved(again, better.within, better.share) == AsGood(
        eor=better.job_plan.prediction.eor, within_nbytes=better.within.grant.budget_nbytes
    )


def test_what_a_job_has_to_be_replayed_in_stays_its_own(arrived):
    job, (first, _) = arrived
    asked = replace(job, former=first.job_plan.as_former)
    replays = replace(first.within, device=replace(first.within.device, replays=True))
    with_room = replace(first.share, ephemeral_nbytes=first.share.ephemeral_nbytes + 2**30)
    better = improved(asked, replays, with_room)
    assert better.share.budget_nbytes == with_room.budget_nbytes
