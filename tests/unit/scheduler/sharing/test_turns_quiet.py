"""Quiet among those who take turns: it comes, nothing happens in it, and then all goes on."""

import pytest

from tensile_db.scheduler.sharing.member import Phase
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.share import Share
from tensile_db.scheduler.sharing.turns import Turns


@pytest.fixture
def turns():
    """Jobs 0 and 1 of one lane, whose states are moved ahead, and job 2 of another lane."""
    made = Turns(memory_nbytes=100, policy=SHARING_POLICIES["auto"])
    moved = Share(lane=0, resident_nbytes=5, ephemeral_nbytes=20, transit_nbytes=10)
    for job, share in enumerate((moved, moved, Share(lane=1, resident_nbytes=10, ephemeral_nbytes=10))):
        made.come_in(job)
        assert made.begin_change(job, share)
        made.end_change(job)
    return made


def ask(turns, *jobs):
    for job in jobs:
        turns.ask(job, left_ns=1, ahead=True)
    return turns.grant()


def test_quiet_is_there_at_once_where_nobody_is_at_work(turns):
    turns.ask_for_quiet()
    assert turns.begin_quiet()
    assert turns.held_nbytes == 20
    assert ask(turns, 0, 2) == []
    assert turns.phase_of(0) is Phase.AWAY
    turns.validate()
    turns.end_quiet()
    assert sorted(turns.grant()) == [0, 2]


def test_turns_under_way_are_wanted_back_and_no_other_begins_before_the_quiet_is_over(turns):
    assert ask(turns, 2) == [2]
    turns.ask_for_quiet()
    assert turns.is_wanted(2)
    assert turns.is_wanted_to_serve(2), "it may end early"
    assert ask(turns, 0) == []
    assert not turns.begin_quiet()
    turns.end(2)
    assert turns.begin_quiet()
    assert turns.grant() == []
    turns.end_quiet()
    assert turns.grant() == [0]
    assert not turns.is_wanted(0)


def test_who_approaches_has_its_turn_first_for_it_waits_for_nothing_else(turns):
    assert ask(turns, 0, 1) == [0]
    assert turns.phase_of(1) is Phase.APPROACHING
    turns.ask_for_quiet()
    turns.end(0)
    turns.gone(0)
    assert not turns.begin_quiet()
    assert ask(turns, 0) == [1], "the one that approaches, and not the one that asks again"
    turns.end(1)
    assert not turns.begin_quiet(), "its state leaves yet"
    turns.gone(1)
    assert turns.begin_quiet()


def test_states_that_linger_leave_before_it(turns):
    assert ask(turns, 2) == [2]
    turns.end(2, lingering_nbytes=10)
    turns.ask_for_quiet()
    assert not turns.begin_quiet()
    assert turns.take_dismissed() == 2
    turns.gone(2)
    assert turns.begin_quiet()
    turns.validate()


def test_in_quiet_no_share_changes_and_nobody_departs(turns):
    smaller = Share(lane=1, resident_nbytes=1, ephemeral_nbytes=1)
    turns.ask_for_quiet()
    assert turns.begin_quiet()
    assert not turns.begin_change(2, smaller)
    assert not turns.depart(1)
    turns.end_quiet()
    assert turns.begin_change(2, smaller)
    turns.ask_for_quiet()
    assert not turns.begin_quiet(), "it frees what it held"
    turns.end_change(2)
    assert turns.depart(1)
    assert not turns.begin_quiet()
    turns.leave(1)
    assert turns.begin_quiet()


def test_one_at_a_time_has_quiet_and_who_wants_it_no_more_keeps_nobody_waiting(turns):
    turns.ask_for_quiet()
    turns.ask_for_quiet()
    assert turns.begin_quiet()
    assert not turns.begin_quiet()
    turns.end_quiet()
    assert ask(turns, 2) == [], "somebody waits for quiet still"
    turns.withdraw_quiet()
    assert turns.grant() == [2]
    turns.validate()


def test_who_waited_through_a_quiet_has_a_turn_before_the_next_one_though_that_is_asked_for(turns):
    turns.ask_for_quiet()
    assert turns.begin_quiet()
    assert ask(turns, 0, 2) == []
    turns.ask_for_quiet()
    turns.end_quiet()
    assert not turns.begin_quiet(), "those who measure one after the other would keep all others waiting"
    assert sorted(turns.grant()) == [0, 2]
    assert ask(turns, 1) == []
    turns.end(0)
    turns.gone(0)
    turns.end(2)
    assert ask(turns, 0, 2) == [], "they had theirs"
    assert turns.begin_quiet()
    turns.validate()


def test_who_waited_through_a_quiet_and_wants_no_turn_any_more_does_not_hold_the_next_one_up(turns):
    turns.ask_for_quiet()
    assert turns.begin_quiet()
    assert ask(turns, 0, 2) == []
    turns.ask_for_quiet()
    turns.end_quiet()
    turns.withdraw(0)
    turns.leave(2)
    assert turns.begin_quiet()


def test_nobody_frees_in_a_quiet_and_no_quiet_begins_while_somebody_frees(turns):
    turns.ask_for_quiet()
    assert turns.begin_freeing(0)
    assert not turns.begin_quiet()
    turns.end_freeing(0)
    assert turns.begin_quiet()
    assert not turns.begin_freeing(0)
    turns.end_quiet()
    assert turns.begin_freeing(0)
