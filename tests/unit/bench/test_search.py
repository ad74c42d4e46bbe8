"""`bench search`: trials that come at once, all to their end or the losers stopped early."""

import json
from functools import partial

import pytest
from typer.testing import CliRunner

from tensile_db.bench.queueing import report, searches
from tensile_db.bench.queueing.simulation import Submission
from tensile_db.cli import app
from tests.graphs.hand_made import chain, device_of
from tests.unit.bench.queued_jobs import LATENCIES, PEAK, PERIOD, planned

TRIAL = Submission(
    graph=chain(state_nbytes=8), latencies_ns=LATENCIES, at_ns=0, iterations=90, host_ns=3 * PERIOD // 2
)


def makespan(sharing, trials, one=TRIAL, **how):
    device = device_of(100 * PEAK)
    stays = searches.search(one, device, sharing, partial(planned, {}), trials=trials, **how)
    assert len(stays) == trials
    return max(stay.done_ns for stay in stays) / PERIOD


def test_losers_end_at_a_ninth_and_a_third_as_many_as_by_successive_halving():
    busy = Submission(graph=TRIAL.graph, latencies_ns=LATENCIES, at_ns=0, iterations=90)
    assert makespan("fifo", 18, busy) == 18 * 90
    assert makespan("fifo", 18, busy, stops=True) == 2 * (6 * 10 + 2 * 30 + 90)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["auto", "fair", "pack", "srtf"])
@pytest.mark.parametrize("stops", [False, True])
def test_trials_that_are_long_on_the_host_fill_each_others_pauses(sharing, stops):
    one_by_one = makespan("fifo", 18, stops=stops)
    # No more than 2.5 times is there to have.
    assert 2 < one_by_one / makespan(sharing, 18, stops=stops) < 2.6


@pytest.mark.slow
def test_the_command_writes_a_row_for_each_way(tmp_path):
    called = ["bench", "search", "--networks", "superres_32", "--trials", "4", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, called)
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "search_p100.json").read_text())
    assert [(row["network"], row["stops"]) for row in document["rows"]] == [
        ("superres_32", stops) for stops in (False, True) for _ in range(5)
    ]
    assert report.search(document) in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--networks", "superes_32"], 'unknown workload of Salus\' table 3 "superes_32"'),
        (["--device", "cpu"], "python -m bench.search runs jobs on the cpu device"),
    ],
)
def test_what_cannot_be_searched_is_refused(arguments, said):
    result = CliRunner().invoke(app, ["bench", "search", *arguments])
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())
