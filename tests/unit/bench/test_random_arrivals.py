"""Thousands of jobs that come at random to one simulated device: all end, and nobody waits without bound.

Networks, lengths, priorities and memory are mixed; the device has more to do than it can do for a while, and
then nothing.  What a job waits for is taken apart:

    in line   until its first turn: the device is not idle, and under `auto`, `fair` and `fifo` nobody of its
              priority who came later begins before it
    in turns  from one turn to the next, under `auto` and `fair`: what the others' parts of the time allow
"""

import random
from functools import cache
from itertools import pairwise

import pytest

from tensile_db.bench.queueing.simulation import Submission, simulate
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.sharing.laning import moving_ns
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES, part_of_time
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tests.examples import share_of
from tests.graphs.hand_made import chain, device_of

#: Graphs with little and much state, and what an op of each takes, in ns.
KINDS = tuple((chain(state_nbytes=nbytes), ns) for nbytes, ns in ((0, 30), (8, 100), (100, 100), (200, 250)))
LARGEST = max(vanilla.peak_nbytes(graph) for graph, _ in KINDS)
#: Who are in at a time.
MOST = 6
#: Of the largest job's eager peak: turns with states that leave, and room for two.
MEMORY = (1.0, 2.0)


class Story:
    """Jobs that come at random, and what became of them."""

    def __init__(self, sharing, seed, memory):
        rng = random.Random(seed)
        self.made = {}
        #: The longest turn of any plan that was made, in ns.
        self.longest_turn_ns = 0
        jobs, at_ns = [], 0
        for _ in range(share_of(500)):
            graph, op_ns = rng.choice(KINDS)
            latencies_ns = (op_ns,) * len(graph.ops)
            iterations = rng.choice([1, 2, 3, 5, 8, 30])
            # Busy and idle times alternate.
            at_ns += int(rng.expovariate(1 / (4 * sum(latencies_ns)))) * rng.choice([0, 1, 1, 6])
            jobs.append(
                Submission(
                    graph=graph,
                    latencies_ns=latencies_ns,
                    at_ns=at_ns,
                    iterations=iterations,
                    priority=rng.choice([-1, 0, 0, 0, 1, 2]),
                )
            )
        device = device_of(int(memory * LARGEST))
        self.stays = simulate(jobs, device, sharing, self.plan, max_jobs=MOST)

    def plan(self, jobs, device, sharing):
        plans = plan_shared(jobs, device, sharing, self.made)
        for job, plan in zip(jobs, plans, strict=True):
            turn_ns = plan.share.iterations * plan.job_plan.prediction.time_ns
            turn_ns += moving_ns(job.graph.state_nbytes, device)
            # Lanes at once slow each other down, in all by no more than their number.
            lanes = len({each.share.lane for each in plans})
            self.longest_turn_ns = max(self.longest_turn_ns, int(lanes * turn_ns))
        return plans


@cache
def told(sharing, seed, memory):
    return Story(sharing, seed, memory)


def stories(*sharing):
    """Give a test such stories under these policies."""
    cases = [(name, seed, memory) for name in sharing for seed in (1, 2) for memory in MEMORY]
    return pytest.mark.parametrize("case", cases, ids=lambda case: "-".join(map(str, case)))


@pytest.mark.slow
@stories(*sorted(SHARING_POLICIES))
def test_every_job_comes_to_its_end(case):
    stays = told(*case).stays
    assert [stay.iterations for stay in stays] == [stay.submission.iterations for stay in stays]
    assert all(stay.submission.at_ns <= stay.began_ns < stay.done_ns for stay in stays)


@pytest.mark.slow
@stories(*sorted(SHARING_POLICIES))
def test_who_waits_waits_for_work_that_is_done_meanwhile(case):
    """Until its first turn a job waits no longer than others' work takes: the device is not idle."""
    story = told(*case)
    ran = [(stay.turns[0][0] - story.longest_turn_ns, stay.done_ns, stay.submission) for stay in story.stays]
    for stay in story.stays:
        meanwhile = [
            job for first, last, job in ran if first < stay.began_ns and last > stay.submission.at_ns
        ]
        # The state moves once an iteration at most; no plan here takes twice the time of its ops.
        work_ns = [2 * job.iterations * (sum(job.latencies_ns) + job.graph.state_nbytes) for job in meanwhile]
        assert stay.queueing_ns <= sum(work_ns)


@stories("auto", "fair", "fifo")
def test_in_line_nobody_is_passed_by_one_of_its_rank_that_came_later(case):
    story = told(*case)
    # Of those who are in together the later may begin first.
    slack_ns = MOST * story.longest_turn_ns
    for priority in (-1, 0, 1, 2):
        began_ns = [stay.began_ns for stay in story.stays if stay.submission.priority == priority]
        assert all(later >= earlier - slack_ns for earlier, later in pairwise(began_ns))


@stories("auto", "fair")
def test_between_two_turns_of_a_job_others_have_no_more_than_their_parts_of_the_time(case):
    story = told(*case)
    for stay in story.stays:
        waits_ns = [later - earlier for (earlier, _), (later, _) in pairwise(stay.turns)]
        ratio = part_of_time(2) / part_of_time(stay.submission.priority)
        # Each of the others: what makes it even with this one, and a turn that had begun.
        turns = 1 + (MOST - 1) * (2 * ratio + 1)
        assert max(waits_ns, default=0) <= turns * story.longest_turn_ns
