import threading

import pytest

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.mailbox import Confirmation, Explanation, Mailbox, PlanOrder, Stopped
from tensile_db.worker.messages import PlanningId, Reason, StopReason
from tensile_db.worker.planning.planning_process import Infeasible


def order(planning):
    return PlanOrder(
        planning=PlanningId(planning),
        job_plan=None,
        share=Share(lane=0, resident_nbytes=1, ephemeral_nbytes=0),
        within=None,
        reason=Reason.DRIFT,
        planning_ns=1,
        latencies_ns=(),
    )


@pytest.fixture
def mailbox():
    return Mailbox()


def test_a_newer_plan_replaces_one_that_was_not_taken(mailbox):
    mailbox.order(order(1))
    mailbox.order(order(2))
    assert mailbox.has_order()
    assert mailbox.take_order().planning == 2
    assert mailbox.take_order() is None


def test_a_job_waits_for_its_first_plan(mailbox):
    threading.Timer(0.05, lambda: mailbox.order(order(1))).start()
    assert mailbox.wait_for_order().planning == 1


def test_a_waiting_job_hears_that_it_must_stop(mailbox):
    threading.Timer(0.05, lambda: mailbox.stop(StopReason.SHUTDOWN)).start()
    with pytest.raises(Stopped) as stop:
        mailbox.wait_for_order()
    assert stop.value.reason is StopReason.SHUTDOWN


def test_a_waiting_job_hears_why_it_is_refused(mailbox):
    mailbox.refuse(DoesNotFit(needed_nbytes=2, budget_nbytes=1))
    with pytest.raises(DoesNotFit):
        mailbox.wait_for_order()


def test_an_explanation_is_waited_for(mailbox):
    explanation = Explanation(alone=Infeasible(needed_nbytes=2, budget_nbytes=1), together=None)
    threading.Timer(0.05, lambda: mailbox.explain(explanation)).start()
    assert mailbox.wait_for_explanation() == explanation


@pytest.mark.parametrize(
    ("reason", "at_once"),
    [
        (StopReason.CANCELLED, True),
        (StopReason.LEASE_LOST, True),
        (StopReason.SHUTDOWN, False),
        (StopReason.PAUSED, False),
    ],
)
def test_only_a_stop_without_a_checkpoint_breaks_an_iteration_off(mailbox, reason, at_once):
    mailbox.stop(reason)
    assert mailbox.must_break_off() == at_once
    with pytest.raises(Stopped):
        mailbox.check()


def test_a_job_that_is_to_pause_hears_that_it_is_cancelled_instead(mailbox):
    mailbox.stop(StopReason.PAUSED)
    mailbox.stop(StopReason.CANCELLED)
    assert mailbox.must_break_off()
    with pytest.raises(Stopped) as stop:
        mailbox.check()
    assert stop.value.reason is StopReason.CANCELLED


def test_a_plan_is_confirmed_once_and_after_it_was_taken(mailbox):
    early, late = (Confirmation(latencies_ns=(1, 2), iterations=count) for count in (3, 4))
    mailbox.confirm(early)
    mailbox.order(newer := order(2))
    assert mailbox.take_confirmation() is None
    mailbox.confirm(late)
    assert mailbox.take_confirmation() is None
    assert mailbox.take_order() is newer
    assert mailbox.take_confirmation() == late
    assert mailbox.take_confirmation() is None
