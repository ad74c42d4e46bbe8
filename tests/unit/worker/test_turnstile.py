"""Threads at the turnstile: they wait, go on, and give up."""

import threading

import pytest

from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.messages import JobId
from tensile_db.worker.turnstile import Turnstile
from tests.patience import PATIENCE_S

A, B, C = JobId(1), JobId(2), JobId(3)


def never():
    return False


@pytest.fixture
def turnstile():
    """Two jobs of one lane are in, with 10 bytes that stay and 50 that do not."""
    turnstile = Turnstile(memory_nbytes=100)
    for job in (A, B):
        turnstile.come_in(job, priority=0)
        share = Share(lane=0, resident_nbytes=10, ephemeral_nbytes=50)
        assert turnstile.change(job, share, lambda: None, never)
    return turnstile


@pytest.fixture
def meanwhile():
    """Run functions in threads that must be over at the end."""
    threads = []

    def start(function):
        thread = threading.Thread(target=function, daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_turn_is_waited_for_until_the_other_one_is_over(turnstile, meanwhile):
    assert turnstile.take(A, left_ns=1, give_up=never)
    had = []

    def other():
        had.append(turnstile.take(B, left_ns=1, give_up=never))
        turnstile.give_back(B)

    thread = meanwhile(other)
    while not turnstile.is_wanted(A):
        pass
    assert had == []
    turnstile.give_back(A)
    thread.join(PATIENCE_S)
    assert had == [True]


def test_who_waits_gives_up_when_told_and_leaves_the_turn_to_others(turnstile, meanwhile):
    assert turnstile.take(A, left_ns=1, give_up=never)
    news = threading.Event()
    answers = []
    thread = meanwhile(lambda: answers.append(turnstile.take(B, left_ns=1, give_up=news.is_set)))
    while not turnstile.is_wanted(A):
        pass
    news.set()
    turnstile.wake()
    thread.join(PATIENCE_S)
    assert answers == [False]
    turnstile.give_back(A)
    assert turnstile.take(A, left_ns=1, give_up=never)


def test_a_job_that_grows_waits_until_another_one_has_left(turnstile, meanwhile):
    grown = Share(lane=0, resident_nbytes=95, ephemeral_nbytes=0)
    changed = []
    thread = meanwhile(
        lambda: changed.append(turnstile.change(A, grown, lambda: changed.append("moves"), never))
    )
    turnstile.wake()
    assert changed == []
    turnstile.leave(B)
    thread.join(PATIENCE_S)
    assert changed == ["moves", True]


def test_a_job_that_fails_while_it_moves_can_leave(turnstile):
    def fail():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        turnstile.change(A, Share(lane=0, resident_nbytes=1, ephemeral_nbytes=1), fail, never)
    turnstile.leave(A)
    assert turnstile.take(B, left_ns=1, give_up=never)


@pytest.fixture
def lingering():
    """Return a turnstile where A's state lingers, and B's, and with what else they are let go of."""

    def make(**leave):
        turnstile = Turnstile(memory_nbytes=100)
        for job, name in ((A, "a"), (B, "b")):
            turnstile.come_in(job, priority=0)
            model = Share(lane=0, resident_nbytes=0, ephemeral_nbytes=40)
            assert turnstile.change(job, model, lambda: None, never)
            assert turnstile.take(job, left_ns=1, give_up=never)
            turnstile.linger(job, 40, leave[name])
        turnstile.come_in(C, priority=0)
        return turnstile

    return make


def test_a_state_that_fails_to_leave_keeps_no_other_from_leaving(lingering, meanwhile):
    def fail():
        raise RuntimeError("no")

    left = []
    turnstile = lingering(a=fail, b=lambda: left.append(B))
    with pytest.raises(RuntimeError, match="no"):
        turnstile.change(C, Share(lane=1, resident_nbytes=90, ephemeral_nbytes=0), lambda: None, never)
    turnstile.leave(C)
    meanwhile(lambda: turnstile.settle(B)).join(PATIENCE_S)
    assert left == [B]
    assert turnstile.take(A, left_ns=1, give_up=never)


def test_who_gives_up_a_larger_share_keeps_nobody_waiting(lingering, meanwhile):
    told = threading.Event()
    turnstile = lingering(a=told.set, b=lambda: None)
    # It is told to stop while A's state leaves for it.
    larger = Share(lane=1, resident_nbytes=90, ephemeral_nbytes=0)
    assert not turnstile.change(C, larger, lambda: None, told.is_set)
    had = []
    meanwhile(lambda: had.append(turnstile.take(A, left_ns=1, give_up=never))).join(PATIENCE_S)
    assert had == [True]


def nothing():
    pass


def test_quiet_is_waited_for_until_turns_are_over_and_turns_and_departures_wait_for_its_end(
    turnstile, meanwhile
):
    told = []
    assert turnstile.take(A, left_ns=1, give_up=never)
    may_end = threading.Event()

    def measure():
        with turnstile.quiet(nothing) as free_nbytes:
            told.append(free_nbytes)
            assert may_end.wait(PATIENCE_S)
            told.append("measured")

    meanwhile(measure)
    while not turnstile.is_wanted(A):
        pass
    assert told == []
    turnstile.give_back(A)
    while not told:
        pass

    def take():
        assert turnstile.take(A, left_ns=1, give_up=never)
        told.append("a turn")

    def depart():
        turnstile.depart(B)
        told.append("gone")
        turnstile.leave(B)

    threads = [meanwhile(take), meanwhile(depart)]
    for thread in threads:
        thread.join(0.05)
    # 10 bytes of each stay.
    assert told == [80]
    may_end.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert told[1] == "measured"
    assert sorted(told[2:]) == ["a turn", "gone"]


def test_who_is_told_to_stop_while_it_waits_for_quiet_keeps_nobody_waiting(turnstile, meanwhile):
    assert turnstile.take(A, left_ns=1, give_up=never)
    stop, told = threading.Event(), []

    def check():
        if stop.is_set():
            raise RuntimeError("told to stop")

    def measure():
        try:
            with turnstile.quiet(check):
                told.append("quiet")
        except RuntimeError as error:
            told.append(str(error))

    thread = meanwhile(measure)
    while not turnstile.is_wanted(A):
        pass
    stop.set()
    turnstile.wake()
    thread.join(PATIENCE_S)
    assert told == ["told to stop"]
    assert not turnstile.is_wanted(A)
    turnstile.give_back(A)
    assert turnstile.take(B, left_ns=1, give_up=never)


def test_states_that_linger_leave_for_quiet_and_one_that_fails_in_it_lets_all_go_on(lingering):
    left = []
    turnstile = lingering(a=lambda: left.append("a"), b=lambda: left.append("b"))
    with turnstile.quiet(nothing) as free_nbytes:
        assert (free_nbytes, left) == (100, ["a", "b"])

    def fail():
        with turnstile.quiet(nothing):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert turnstile.take(A, left_ns=1, give_up=never)
