"""Turns on a device: memory, order, and that everybody gets on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.turns import Turns
from tests.examples import examples


def share(lane=0, resident=10, ephemeral=30):
    return Share(lane=lane, resident_nbytes=resident, ephemeral_nbytes=ephemeral)


def turns_of(*shares, policy="auto", memory=100, priorities=(), serve=()):
    """Return turns with jobs 0, 1, ... that hold these shares; serve: those that serve models."""
    turns = Turns(memory_nbytes=memory, policy=SHARING_POLICIES[policy])
    for job, held in enumerate(shares):
        turns.come_in(job, priority=priorities[job] if priorities else 0, serves=job in serve)
        assert turns.begin_change(job, held)
        turns.end_change(job)
    return turns


def served(turns, lengths, rounds, left=None):
    """Let every job ask always; return the order of turns in one lane."""
    order = []
    for _ in range(rounds):
        for job in lengths:
            turns.ask(job, left_ns=left[job] if left else 1)
        (job,) = turns.grant()
        turns.validate()
        turns.serve(job, lengths[job])
        turns.end(job)
        order.append(job)
    return order


def test_of_a_lane_only_one_job_has_a_turn_and_its_jobs_need_room_for_one():
    shares = [share(), share(), share()]
    assert needed_nbytes(shares) == 60
    turns = turns_of(*shares, memory=60)
    for job in range(3):
        turns.ask(job, left_ns=1)
    assert turns.grant() == [0]
    assert turns.held_nbytes == 60
    assert turns.grant() == []
    turns.end(0)
    assert turns.grant() == [1]


def test_jobs_in_different_lanes_have_turns_at_once():
    turns = turns_of(share(lane=0), share(lane=1))
    turns.ask(0, left_ns=1)
    turns.ask(1, left_ns=1)
    assert turns.grant() == [0, 1]


def test_a_job_that_grows_waits_for_the_one_that_shrinks_and_not_the_other_way_round():
    turns = turns_of(share(resident=60, ephemeral=0), share(resident=30, ephemeral=0))
    grown = share(resident=60, ephemeral=0)
    assert not turns.begin_change(1, grown)
    assert turns.begin_change(0, share(resident=40, ephemeral=0))
    assert not turns.begin_change(1, grown), "it has not shrunk yet"
    turns.end_change(0)
    assert turns.begin_change(1, grown)
    turns.end_change(1)
    turns.validate()


def test_a_turn_for_which_there_is_no_room_yet_is_not_overtaken_by_smaller_ones():
    # By its old share, the first one's ephemeral part has no room beside what the second has grown to.
    turns = turns_of(share(lane=0, resident=10, ephemeral=50), share(lane=1, resident=10, ephemeral=5))
    turns.come_in(2)
    assert turns.begin_change(2, share(lane=2, resident=60, ephemeral=0))
    turns.end_change(2)
    turns.ask(0, left_ns=1)
    turns.ask(1, left_ns=1)
    assert turns.grant() == []
    # It takes up its new share, and both get on.
    turns.withdraw(0)
    assert turns.begin_change(0, share(lane=0, resident=10, ephemeral=5))
    turns.end_change(0)
    turns.ask(0, left_ns=1)
    assert turns.grant() == [0, 1]


def test_fair_gives_jobs_the_same_time_whatever_their_iterations_take():
    turns = turns_of(share(), share(), policy="fair")
    order = served(turns, {0: 10, 1: 30}, 40)
    assert order.count(0) == 30


def test_a_step_of_priority_doubles_a_jobs_part_of_the_time():
    turns = turns_of(share(), share(), policy="auto", priorities=(0, 1))
    order = served(turns, {0: 10, 1: 10}, 30)
    assert order.count(1) == 20


def test_who_comes_late_to_fair_shares_makes_up_for_nothing():
    turns = turns_of(share(), policy="fair")
    served(turns, {0: 10}, 100)
    turns.come_in(1)
    turns.begin_change(1, share())
    turns.end_change(1)
    order = served(turns, {0: 10, 1: 10}, 20)
    assert order.count(1) == 10


def test_srtf_lets_the_one_with_the_least_left_go_first():
    turns = turns_of(share(), share(), share(), policy="srtf")
    assert served(turns, {0: 1, 1: 1, 2: 1}, 2, left={0: 90, 1: 20, 2: 50}) == [1, 1]


def test_srtf_and_pack_let_higher_priorities_go_first():
    for policy in ("srtf", "pack", "fifo"):
        turns = turns_of(share(), share(), policy=policy, priorities=(0, 1))
        assert served(turns, {0: 1, 1: 1}, 3) == [1, 1, 1]


def test_a_raised_priority_counts_from_the_next_turn_on():
    turns = turns_of(share(), share(), policy="srtf")
    assert served(turns, {0: 1, 1: 1}, 1) == [0]
    turns.set_priority(1, 5)
    assert served(turns, {0: 1, 1: 1}, 1) == [1]


def test_a_jobs_turn_is_wanted_by_its_lane_only():
    turns = turns_of(share(lane=0), share(lane=1), share(lane=0))
    turns.ask(0, left_ns=1)
    turns.grant()
    turns.ask(1, left_ns=1)
    turns.grant()
    assert not turns.is_wanted(0)
    turns.ask(2, left_ns=1)
    assert turns.is_wanted(0)
    assert not turns.is_wanted(1)


@examples(200)
@given(data=st.data(), policy=st.sampled_from(["auto", "fair"]), count=st.integers(2, 6))
def test_nobody_starves_where_time_is_shared(data, policy, count):
    """Between two turns of a job, each other one has no more time than their parts and two turns allow."""
    lengths = {job: data.draw(st.integers(1, 50), label=f"length {job}") for job in range(count)}
    priorities = [data.draw(st.integers(0, 2), label=f"priority {job}") for job in range(count)]
    turns = turns_of(*[share(resident=1)] * count, policy=policy, priorities=priorities)
    order = served(turns, lengths, 60 * count)
    longest = max(lengths.values())
    for job in range(count):
        waited = 0
        for other in order:
            waited = 0 if other == job else waited + lengths[other]
            others = sum(2.0 ** priorities[k] for k in range(count) if k != job) / 2.0 ** priorities[job]
            assert waited <= others * (lengths[job] + longest) + count * longest


def test_what_a_lane_had_to_itself_is_not_made_up_for_when_lanes_become_one():
    """Else the job that was alone in its lane would get nothing for as long as the others had been two."""
    turns = turns_of(share(lane=0), share(lane=1), share(lane=1))
    turns.serve(0, 1000)
    for job in (1, 2):
        turns.serve(job, 500)
        assert turns.begin_change(job, share(lane=0))
        turns.end_change(job)
    assert sorted(served(turns, {0: 10, 1: 10, 2: 10}, 30)) == [*[0] * 10, *[1] * 10, *[2] * 10]


@pytest.mark.parametrize("policy", ["fifo", "srtf", "pack"])
def test_who_serves_goes_first_where_time_is_not_shared(policy):
    turns = turns_of(share(), share(), share(), policy=policy, priorities=(1, 0, 0), serve={2})
    assert served(turns, {0: 1, 1: 1, 2: 1}, 2, left={0: 1, 1: 2, 2: 9}) == [2, 2]


@pytest.mark.parametrize("policy", ["auto", "fair"])
def test_who_serves_now_and_then_goes_first_where_time_is_shared_and_who_always_does_shares_it(policy):
    turns = turns_of(share(), share(), policy=policy, serve={1})
    assert served(turns, {0: 10}, 3) == [0, 0, 0]
    order = served(turns, {0: 10, 1: 1}, 60)
    assert order[:30] == [1] * 30
    assert 0 in order[30:32]


def test_one_that_serves_is_told_apart_from_others_that_want_a_turn():
    turns = turns_of(share(), share(), share(), share(lane=1), memory=200, serve={2, 3})
    for job in (0, 1, 3):
        turns.ask(job, left_ns=1)
    assert turns.grant() == [0, 3]
    assert turns.is_wanted(0)
    assert not turns.is_wanted_to_serve(0)
    turns.ask(2, left_ns=1)
    assert turns.is_wanted_to_serve(0)
