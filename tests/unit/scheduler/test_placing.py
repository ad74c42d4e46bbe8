"""Which worker a job goes to: one situation a test, then random ones."""

import random

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.placing import Need, Offer, can_ever_take, only_these_would_do, place
from tests.examples import examples


def offer(worker, **others):
    return Offer(
        **(
            {"worker": worker, "device": "cpu", "cache": f"c{worker}", "memory_nbytes": 100, "places": 4}
            | others
        )
    )


def where(needs, *offers):
    """Return the worker of each job that has one."""
    return {placement.job: placement.worker for placement in place(needs, offers)}


def need(job=1, **others):
    return Need(job=job, **others)


def test_jobs_spread_over_equal_workers():
    needs = [need(job) for job in (1, 2, 3, 4)]
    assert where(needs, offer(1), offer(2)) == {1: 1, 2: 2, 3: 1, 4: 2}


def test_a_device_three_times_as_fast_gets_three_times_as_many():
    needs = [need(job) for job in range(1, 9)]
    placed = where(needs, offer(1, flops_per_s=3, places=9), offer(2, places=9))
    assert sorted(placed.values()) == [1] * 6 + [2] * 2


def test_a_job_that_was_too_large_goes_to_a_larger_device_only():
    assert where([need(least_nbytes=150)], offer(1), offer(2, memory_nbytes=200, held=3)) == {1: 2}
    assert where([need(least_nbytes=150)], offer(1)) == {}
    assert where([need(least_nbytes=150)], offer(1), offer(2, memory_nbytes=200, held=4)) == {}


def test_one_that_probably_is_too_large_is_tried_on_a_small_device_only_where_there_is_no_other():
    assert where([need(likely_least_nbytes=150)], offer(1), offer(2, memory_nbytes=200, held=3)) == {1: 2}
    assert where([need(likely_least_nbytes=150)], offer(1)) == {1: 1}


@pytest.mark.parametrize(
    ("these", "others", "want"),
    [
        ([offer(1, memory_nbytes=70)], [offer(2, memory_nbytes=60)], True),
        ([offer(1, memory_nbytes=70)], [], True),
        ([offer(1, memory_nbytes=70)], [offer(2, memory_nbytes=70)], False),
        ([offer(1, memory_nbytes=69)], [offer(2, memory_nbytes=60)], False),
        ([], [offer(2, memory_nbytes=60)], False),
        ([offer(1, device="gpu")], [offer(2, memory_nbytes=60)], False),
        ([offer(1)], [offer(2, device="gpu")], True),
    ],
)
def test_whether_only_some_devices_are_likely_to_be_large_enough(these, others, want):
    assert only_these_would_do(need(device="cpu", likely_least_nbytes=70), these, others) == want


def test_a_job_for_a_named_device_goes_to_no_other():
    assert where([need(device="cuda:0")], offer(1), offer(2, device="cuda:0", held=3)) == {1: 2}


@pytest.mark.parametrize(
    ("known", "worker"),
    [({}, 2), ({"wanted_nbytes": 50}, 1), ({"wanted_nbytes": 150}, 2), ({"wanted_nbytes": 300}, 1)],
)
def test_a_job_of_unknown_size_gets_the_largest_device_and_one_that_is_known_the_smallest_that_does(
    known, worker
):
    assert where([need(**known)], offer(1), offer(2, memory_nbytes=200)) == {1: worker}


@pytest.mark.parametrize(
    "busy", [{"held": 2, "in_line": 1}, {"held": 1, "alone": True}, {"held": 1, "shared_nbytes": 60}]
)
def test_a_job_goes_where_it_does_not_wait_though_more_run_there(busy):
    assert where([need(wanted_nbytes=50)], offer(1, **busy), offer(2, held=3)) == {1: 2}


def test_a_job_that_has_begun_goes_where_its_rows_are():
    begun = need(begun=True, caches=frozenset({"c1"}))
    assert where([begun], offer(1, held=3, in_line=1), offer(2)) == {1: 1}
    assert where([begun], offer(1, held=4), offer(2)) == {1: 2}
    assert where([begun], offer(2)) == {1: 2}


def test_rows_that_would_be_read_again_count_as_a_job():
    trials = [need(job, caches=frozenset({"c1"})) for job in range(1, 6)]
    assert where(trials, offer(1, places=9), offer(2, places=9)) == {1: 1, 2: 1, 3: 2, 4: 1, 5: 2}


def test_a_search_takes_no_place_but_comes_only_where_there_is_one():
    search = need(1, takes_place=False)
    assert where([search, need(2)], offer(1, held=3)) == {1: 1, 2: 1}
    assert where([search, need(2)], offer(1, held=4)) == {}
    assert where([search], offer(1, held=4), offer(2, held=3)) == {1: 2}


def test_what_always_comes_needs_no_place():
    server = need(takes_place=False, always_comes=True)
    assert where([server], offer(1, held=4)) == {1: 1}
    # It holds memory all the same: this one is not idle.
    waiting = need(2, line_of=1)
    assert where([waiting], offer(1, held=2, in_line=1), offer(2, shared_nbytes=1)) == {2: 1}


def test_a_job_in_line_goes_to_a_worker_that_has_nothing_to_do():
    waiting = [need(job, line_of=1) for job in (2, 3)]
    moved = place(waiting, [offer(1, held=3, in_line=2), offer(2)])
    assert [(placement.job, placement.worker, placement.moves) for placement in moved] == [
        (2, 2, True),
        (3, 1, False),
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"held": 1},
        {"memory_nbytes": 90},
        {"device": "other"},
    ],
)
def test_a_job_in_line_stays_where_it_is_not_sure_that_it_would_run_elsewhere_at_once(other):
    assert where([need(line_of=1, device="cpu")], offer(1, held=2, in_line=1), offer(2, **other)) == {1: 1}


@pytest.mark.parametrize(
    ("other", "worker"),
    [
        ({"held": 1, "shared_nbytes": 60}, 2),
        ({"held": 1, "shared_nbytes": 61}, 1),
        ({"held": 2, "preparing": 1}, 1),
        ({"held": 2, "in_line": 1}, 1),
        ({"held": 1, "alone": True}, 1),
        ({"memory_nbytes": 40}, 2),
        ({"memory_nbytes": 39}, 1),
    ],
)
def test_a_job_in_line_whose_size_is_known_goes_where_there_is_room_for_it(other, worker):
    waiting = need(line_of=1, wanted_nbytes=40)
    assert where([waiting], offer(1, held=2, in_line=1), offer(2, **other)) == {1: worker}


def test_a_job_in_line_that_has_begun_stays_with_its_rows():
    waiting = need(line_of=1, begun=True, caches=frozenset({"c1"}))
    busy = offer(1, held=2, in_line=1)
    assert where([waiting], busy, offer(2)) == {1: 1}
    assert where([waiting], busy, offer(2, cache="c1")) == {1: 2}


def test_older_jobs_get_the_room_that_there_is_in_whosever_line_they_wait():
    needs = [need(4, line_of=3), need(5, line_of=1), need(6)]
    busy = {"held": 2, "in_line": 1}
    assert where(needs, offer(1, **busy), offer(2), offer(3, **busy)) == {4: 2, 5: 1, 6: 2}


@st.composite
def situations(draw):
    """Workers, and jobs that are queued or in line at some of them."""
    offers, line = [], []
    for worker in range(1, draw(st.integers(1, 4)) + 1):
        places = draw(st.integers(1, 4))
        held = draw(st.integers(0, places))
        in_line = draw(st.integers(0, held))
        line += [worker] * in_line
        offers.append(
            offer(
                worker,
                device=draw(st.sampled_from(["cpu", "gpu"])),
                cache=draw(st.sampled_from(["a", "b"])),
                memory_nbytes=draw(st.sampled_from([50, 100, 200])),
                shared_nbytes=draw(st.sampled_from([0, 40, 100])) if held > in_line else 0,
                held=held,
                preparing=draw(st.integers(0, held - in_line)),
                in_line=in_line,
                places=places,
                alone=draw(st.booleans()),
                flops_per_s=draw(st.sampled_from([1, 2, 7])),
            )
        )
    line += [None] * draw(st.integers(0, 6))
    needs = []
    for job, holder in enumerate(draw(st.permutations(line))):
        at = next((offer for offer in offers if offer.worker == holder), None)
        most = 300 if at is None else at.memory_nbytes
        needs.append(
            need(
                job,
                line_of=holder,
                device=draw(st.sampled_from([None, None, at.device if at else "gpu"])),
                least_nbytes=draw(st.sampled_from([0, 0, min(most, 60), most])),
                likely_least_nbytes=draw(st.sampled_from([0, 120])),
                wanted_nbytes=draw(st.sampled_from([None, 30, 150])),
                caches=frozenset(draw(st.sets(st.sampled_from(["a", "b"])))),
                begun=draw(st.booleans()),
                takes_place=holder is not None or draw(st.booleans()),
            )
        )
    return needs, offers


@given(situation=situations(), seed=st.integers(0, 9))
@examples(400)
def test_what_is_placed_can_be_taken_and_what_could_be_taken_is_placed(situation, seed):
    needs, offers = situation
    placements = place(needs, offers)
    shuffled = list(offers)
    random.Random(seed).shuffle(shuffled)
    assert place(needs, shuffled) == placements, "workers would disagree"
    by_worker = {offer.worker: offer for offer in offers}
    by_job = {need.job: need for need in needs}
    held = {offer.worker: offer.held for offer in offers}
    for placement in placements:
        wish, taker = by_job[placement.job], by_worker[placement.worker]
        assert can_ever_take(wish, device=taker.device, memory_nbytes=taker.memory_nbytes)
        if placement.moves:
            event("moves")
            held[placement.line_of] -= 1
        if (placement.moves or wish.line_of is None) and wish.takes_place:
            held[placement.worker] += 1
    assert all(held[offer.worker] <= offer.places for offer in offers)
    placed = {placement.job for placement in placements}
    assert {need.job for need in needs if need.line_of is not None} <= placed
    for wish in (need for need in needs if need.job not in placed):
        event("nobody has a place")
        assert not any(
            held[o.worker] < o.places
            and can_ever_take(wish, device=o.device, memory_nbytes=o.memory_nbytes)
            # What leaves later in the line is for the next look.
            and not any(placement.line_of == o.worker and placement.moves for placement in placements)
            for o in offers
        ), "a place is left over, and a job that could have it"


def test_a_job_that_was_given_back_for_a_worker_goes_there_while_it_has_a_place():
    meant = need(meant_for=2)
    assert where([meant], offer(1, flops_per_s=9), offer(2, held=3)) == {1: 2}
    assert where([meant], offer(1, flops_per_s=9), offer(2, held=4)) == {1: 1}
    assert where([meant], offer(1, flops_per_s=9)) == {1: 1}
