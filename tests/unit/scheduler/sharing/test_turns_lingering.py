"""States that stay after a turn in memory that nobody needs: who leaves, when, and for whom."""

import pytest

from tensile_db.scheduler.sharing.member import Phase
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.share import Share
from tensile_db.scheduler.sharing.turns import Turns

MODEL = Share(lane=0, resident_nbytes=0, ephemeral_nbytes=40)


def turns_of(*shares, memory=100):
    turns = Turns(memory_nbytes=memory, policy=SHARING_POLICIES["auto"])
    for job, share in enumerate(shares):
        turns.come_in(job)
        assert turns.begin_change(job, share)
        turns.end_change(job)
    return turns


def have_turn(turns, job, state=30):
    turns.ask(job, left_ns=1)
    assert turns.grant() == [job]
    turns.validate()
    turns.end(job, lingering_nbytes=state)
    turns.validate()


def send_away(turns):
    dismissed = []
    while (job := turns.take_dismissed()) is not None:
        dismissed.append(job)
        assert turns.phase_of(job) is Phase.LEAVING
        turns.gone(job)
        turns.validate()
    return dismissed


def test_a_state_lingers_until_its_room_is_needed_and_the_longest_unused_leaves_first():
    turns = turns_of(MODEL, MODEL, MODEL)
    for job in (0, 1, 0):
        have_turn(turns, job)
    assert turns.held_nbytes == 60
    turns.ask(2, left_ns=1)
    assert turns.grant() == [2], "there is room for 40 beside 60"
    turns.end(2, lingering_nbytes=30)
    # Its own state is there already, and the others' are no hindrance.
    have_turn(turns, 1)
    turns.ask(0, left_ns=1)
    assert turns.grant() == [0]
    assert turns.held_nbytes == 100
    turns.end(0, lingering_nbytes=30)
    turns.come_in(3)
    assert turns.begin_change(3, MODEL)
    turns.end_change(3)
    turns.ask(3, left_ns=1)
    assert turns.grant() == []
    assert send_away(turns) == [2]
    assert turns.grant() == [3]


def test_no_more_states_leave_than_must_and_each_is_dismissed_once():
    turns = turns_of(MODEL, MODEL, MODEL, memory=100)
    for job in range(3):
        have_turn(turns, job, state=20)
    large = Share(lane=1, resident_nbytes=0, ephemeral_nbytes=75)
    turns.come_in(3)
    assert turns.begin_change(3, large)
    turns.end_change(3)
    turns.ask(3, left_ns=1)
    assert turns.grant() == []
    assert turns.grant() == []
    assert send_away(turns) == [0, 1]
    assert turns.grant() == [3]
    assert turns.phase_of(2) is Phase.LINGERING


def test_a_share_that_grows_has_lingering_states_leave():
    turns = turns_of(MODEL, memory=60)
    have_turn(turns, 0)
    turns.come_in(1)
    grown = Share(lane=1, resident_nbytes=50, ephemeral_nbytes=0)
    assert not turns.begin_change(1, grown)
    assert send_away(turns) == [0]
    assert turns.begin_change(1, grown)
    turns.end_change(1)
    turns.validate()


def test_a_state_that_is_moved_ahead_has_lingering_states_leave():
    training = Share(lane=1, resident_nbytes=0, ephemeral_nbytes=40, transit_nbytes=20)
    turns = turns_of(MODEL, training, training)
    have_turn(turns, 0, state=40)
    turns.ask(1, left_ns=1, ahead=True)
    turns.ask(2, left_ns=1, ahead=True)
    assert turns.grant() == [1]
    assert turns.phase_of(2) is Phase.APPROACHING, "40 and 40 and 20 fit"
    turns.withdraw(2)
    turns.gone(2)
    turns.end(1)
    have_turn(turns, 0, state=35)
    turns.gone(1)
    bigger = Share(lane=1, resident_nbytes=0, ephemeral_nbytes=50, transit_nbytes=20)
    for job in (1, 2):
        assert turns.begin_change(job, bigger)
        turns.end_change(job)
        turns.ask(job, left_ns=1, ahead=True)
    assert turns.grant() == [1]
    assert send_away(turns) == [0]
    assert turns.grant() == []
    assert turns.phase_of(2) is Phase.APPROACHING


def test_who_was_dismissed_asks_and_has_a_turn_once_its_state_is_gone():
    turns = turns_of(MODEL, MODEL, memory=60)
    have_turn(turns, 0)
    turns.serve(0, 5)
    turns.ask(1, left_ns=1)
    assert turns.grant() == []
    turns.ask(0, left_ns=1)
    turns.validate()
    assert send_away(turns) == [0]
    assert turns.grant() == [1]
    turns.end(1)
    assert turns.grant() == [0]


def test_a_job_that_is_over_is_dismissed_no_more():
    turns = turns_of(MODEL, MODEL, memory=60)
    have_turn(turns, 0)
    turns.ask(1, left_ns=1)
    turns.grant()
    turns.leave(0)
    assert turns.take_dismissed() is None
    assert turns.grant() == [1]


def others_serve(turns, large):
    """Let model 0's state linger, model 1 have its turn, model 2 ask, and job 3 come in for other memory."""
    have_turn(turns, 0)
    turns.ask(1, left_ns=1)
    assert turns.grant() == [1]
    turns.come_in(3)
    if large.resident_nbytes:
        assert not turns.begin_change(3, large)
    else:
        assert turns.begin_change(3, large)
        turns.end_change(3)
        # The models have had less of the time, and come first.
        turns.serve(3, 1000)
        turns.ask(3, left_ns=1)
        assert turns.grant() == []
    turns.ask(2, left_ns=1)
    assert turns.grant() == []
    turns.end(1, lingering_nbytes=30)
    turns.validate()
    # Model 2 would fit; its state would linger next, and so on for ever.
    assert turns.grant() == []


def test_a_turn_is_not_put_off_by_models_that_have_theirs_while_states_leave_for_it():
    turns = turns_of(MODEL, MODEL, MODEL)
    others_serve(turns, Share(lane=1, resident_nbytes=0, ephemeral_nbytes=60))
    assert send_away(turns) == [0]
    assert turns.grant() == [3]
    turns.end(3)
    assert turns.grant() == [2]


def test_a_share_that_grows_is_not_put_off_by_models_that_have_turns_while_states_leave_for_it():
    turns = turns_of(MODEL, MODEL, MODEL)
    large = Share(lane=1, resident_nbytes=60, ephemeral_nbytes=0)
    others_serve(turns, large)
    assert send_away(turns) == [0]
    assert turns.grant() == []
    assert turns.begin_change(3, large)
    turns.end_change(3)
    turns.validate()
    assert turns.grant() == []
    assert send_away(turns) == [1]
    assert turns.grant() == [2]


def test_who_waits_for_a_larger_share_no_more_is_waited_for_no_more():
    turns = turns_of(MODEL, MODEL, MODEL)
    others_serve(turns, Share(lane=1, resident_nbytes=60, ephemeral_nbytes=0))
    turns.withdraw(3)
    assert turns.grant() == [2]


def test_a_share_that_waits_for_a_turn_s_end_keeps_nobody_waiting():
    turns = turns_of(MODEL, Share(lane=1, resident_nbytes=0, ephemeral_nbytes=50), MODEL)
    for job in (0, 1):
        turns.ask(job, left_ns=1)
    assert turns.grant() == [0, 1]
    turns.come_in(3)
    assert not turns.begin_change(3, Share(lane=2, resident_nbytes=60, ephemeral_nbytes=0))
    turns.end(0, lingering_nbytes=30)
    turns.ask(2, left_ns=1)
    turns.grant()
    assert send_away(turns) == [0]
    assert turns.grant() == [2]


def test_only_what_need_not_be_moved_lingers():
    moved = Share(lane=0, resident_nbytes=0, ephemeral_nbytes=40, transit_nbytes=30)
    turns = turns_of(moved)
    turns.ask(0, left_ns=1)
    turns.grant()
    with pytest.raises(AssertionError, match="in transit"):
        turns.end(0, lingering_nbytes=30)


def test_no_more_lingers_than_the_share_has_room_for():
    turns = turns_of(MODEL)
    turns.ask(0, left_ns=1)
    turns.grant()
    with pytest.raises(AssertionError, match="more than its share"):
        turns.end(0, lingering_nbytes=41)
