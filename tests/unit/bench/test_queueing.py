"""Jobs that come and go on one simulated device."""

from dataclasses import replace
from functools import partial

import pytest

from tensile_db.bench.queueing.pictures import distribution, draw_completions
from tensile_db.bench.queueing.simulation import Submission, completions_s, percentile, simulate, summary
from tests.graphs.hand_made import device_of
from tests.unit.bench.queued_jobs import GRAPH, LATENCIES, PEAK, PERIOD, planned


def job(at=0, iterations=10, **other):
    return Submission(graph=GRAPH, latencies_ns=LATENCIES, at_ns=at, iterations=iterations, **other)


def run(jobs, sharing, *, memory=100 * PEAK, max_jobs=16, made=None):
    plan = partial(planned, {} if made is None else made)
    return simulate(jobs, device_of(memory), sharing, plan, max_jobs=max_jobs)


def ends(stays):
    return [stay.done_ns // PERIOD for stay in stays]


def test_under_fifo_jobs_run_one_after_another():
    assert ends(run([job(), job(iterations=1), job()], "fifo")) == [10, 11, 21]


def test_under_srtf_a_short_job_passes_a_long_one_at_its_next_boundary():
    stays = run([job(), job(at=PERIOD // 2, iterations=2)], "srtf")
    assert ends(stays) == [12, 3]
    assert stays[1].queueing_ns == PERIOD // 2


def test_under_fair_equal_jobs_end_together():
    assert ends(run([job(), job(), job()], "fair")) == [28, 29, 30]


def test_a_turn_may_be_of_several_iterations():
    first, second = run([job(iterations_a_turn=4), job(iterations_a_turn=4)], "fair")
    assert [done for _, done in first.turns] == [4, 8, 10]
    assert [at_ns // PERIOD for at_ns, _ in second.turns] == [8, 16, 20]


def test_priority_goes_first_under_srtf_and_doubles_a_jobs_part_under_fair():
    assert ends(run([job(iterations=3), job(iterations=9, priority=1)], "srtf")) == [12, 9]
    first, second = run([job(iterations=30), job(iterations=30, priority=1)], "fair")
    at_half = max(done for at_ns, done in first.turns if at_ns <= second.done_ns)
    assert at_half in range(14, 17)


def test_two_jobs_in_memory_for_one_take_turns_and_pay_for_moving_their_state():
    one = job(iterations=100, policy="vanilla")
    assert ends(run([one], "auto", memory=PEAK)) == [100]
    # 28 bytes each way, a nanosecond a byte, for an iteration of 1,000 ns.
    assert max(ends(run([one] * 2, "auto", memory=PEAK))) == 211


def test_what_a_job_does_on_the_host_is_another_ones_turn():
    jobs = [job(host_ns=PERIOD)] * 2
    assert max(ends(run(jobs, "fifo"))) == 38
    assert max(ends(run(jobs, "fair"))) == 20


def test_a_completion_time_runs_from_a_jobs_coming_to_its_end():
    # Iterations of a second each.
    in_seconds = tuple(latency_ns * (10**9 // PERIOD) for latency_ns in LATENCIES)
    jobs = [
        replace(each, latencies_ns=in_seconds) for each in (job(iterations=4), job(at=10**9, iterations=1))
    ]
    stays = run(jobs, "fifo")
    assert completions_s(stays) == [4.0, 4.0]
    stays = run(jobs, "srtf")
    assert completions_s(stays) == [5.0, 1.0]
    assert (summary(stays)["completion_s"], summary(stays)["completion_95_s"]) == (3.0, 5.0)


@pytest.mark.parametrize(("percent", "time"), [(0, 1), (1, 1), (25, 1), (26, 2), (50, 2), (95, 4), (100, 4)])
def test_so_many_percent_of_the_times_are_no_longer_than_their_percentile(percent, time):
    assert percentile([3, 1, 4, 2], percent) == time


def test_a_distribution_rises_at_each_time_up_to_one():
    assert distribution([3.0, 1.0, 1.0, 2.0]) == [(0, 0), (1, 0.25), (1, 0.5), (2, 0.75), (3, 1)]


def test_the_picture_has_a_curve_for_each_policy_and_is_the_same_in_every_run(tmp_path):
    document = {
        "trace": [
            {"sharing": "fifo", "completions_s": [60.0, 240.0]},
            {"sharing": "auto", "completions_s": [90.0]},
        ]
    }
    (first,) = draw_completions(document, tmp_path, "first")
    (second,) = draw_completions(document, tmp_path, "second")
    assert first.read_bytes() == second.read_bytes()
    shown = first.read_text()
    # The paper has no policy `auto`.
    assert [label in shown for label in (">fifo<", ">auto<", ">Salus, fifo: 95 %<", ">Salus, auto")] == [
        True,
        True,
        True,
        False,
    ]
