"""The process that measures, from the side that started it, and the command."""

import os
import re
import signal

import pytest
from typer.testing import CliRunner

from tensile_db.cli import app
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.latencies.measuring import Measuring
from tensile_db.worker.latencies.measuring_process import Begun, Finished, KindDone, Learn, Measure, Measured
from tests.graphs.hand_made_ops import KIND, lawful_samples

#: Of 12 s each, which add up: on a machine that is slow and busy, one is not enough to measure in.
_MOST_RUNS = 16

ORDER = Measure(config=WorkerConfig(dsn="", memory_nbytes=2**25, threads=1, calibrate=False), first=7, seed=1)


@pytest.mark.thorough
def test_a_probe_that_kills_the_process_is_left_out_and_the_next_ones_are_measured():
    measuring = Measuring(ORDER)
    said = []
    for answer in measuring.answers():
        said.append(answer)
        if answer == Begun(probe=7):
            os.kill(measuring._process.pid, signal.SIGSEGV)
        if answer == Begun(probe=9):
            measuring.stop()
    assert said[:3] == [Begun(probe=7), Measured(probe=7, samples=()), Begun(probe=8)]
    assert isinstance(said[3], Measured)
    assert said[3].probe == 8
    assert said[4:] == [Begun(probe=9)]


def test_what_was_stopped_before_it_began_says_nothing():
    measuring = Measuring(ORDER)
    measuring.stop()
    assert list(measuring.answers()) == []


# The command learns in it, too, below.
@pytest.mark.thorough
def test_models_are_learned_in_the_process():
    device = DeviceSpec(
        name="a",
        memory_nbytes=1,
        d2h_bytes_per_s=1,
        h2d_bytes_per_s=1,
        duplex=True,
        flops_per_s=10**9,
        memory_bytes_per_s=10**9,
        op_overhead_ns=1,
    )
    answers = list(Measuring(Learn(samples=tuple(lawful_samples(30)), device=device, seed=1)).answers())
    assert answers[0] == KindDone(done=1, of=1)
    assert isinstance(answers[1], Finished)
    assert answers[1].learned[KIND].sample_count == 60


def test_the_command_measures_learns_and_says_how_well(database):
    options = ("--memory", "32MiB", "--threads", "1", "--seconds", "12")
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    for _ in range(_MOST_RUNS):
        result = runner.invoke(app, ["calibrate", "--dsn", database.worker, *options])
        assert result.exit_code == 0, result.output
        assert "1 threads a job, torch" in result.stdout
        learned = set(re.findall(r"aten\.\w+\.\w+", result.stdout))
        (row,) = database.execute(
            "SELECT count(*) AS kinds, count(network) AS networks, count(r_squared_log) AS errors,"
            " min(roofline_scale) AS least FROM tensile.latency_models"
        )
        if len(learned) > 10 and row["networks"]:
            break
    assert len(learned) > 10
    assert row["kinds"] > 20
    assert 0 < row["networks"] == row["errors"]
    assert row["least"] > 0


def test_a_login_that_is_no_worker_cannot_calibrate(database):
    anna = database.worker.replace("worker_login", "anna")
    arguments = ["calibrate", "--dsn", anna, "--memory", "32MiB", "--threads", "1", "--seconds", "600"]
    result = CliRunner(env={"TERM": "dumb"}).invoke(app, arguments)
    assert result.exit_code == 1
    assert "permission denied for table latency_samples" in result.stderr
    # Before anything is measured.
    assert "measuring" not in result.stderr
