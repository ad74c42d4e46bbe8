"""The command line without a server: help, refusals, exit status, and what it must not import."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tensile_db.cli import app
from tensile_db.commands.sizes import parse_nbytes, parse_rate
from tensile_db.errors import InvalidRequest
from tensile_db.worker.devices import limits

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "up",
    "down",
    "status",
    "psql",
    "install",
    "worker",
    "plan",
    "check",
    "calibrate",
    "bench",
    "doctor",
    "demo",
)


@pytest.fixture
def run():
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    return lambda *arguments: runner.invoke(app, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run, command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Usage: tensile-db {command}" in result.output


def test_the_help_names_every_command(run):
    output = run("--help").output
    assert [command for command in COMMANDS if command not in output] == []


def test_an_unknown_option_is_a_usage_error(run):
    assert run("status", "--frobnicate").exit_code == 2


@pytest.mark.slow
def test_asking_for_help_imports_neither_torch_nor_psycopg():
    code = (
        "import sys; from tensile_db.cli import app; app(['plan', '--help'], standalone_mode=False);"
        "print([name for name in ('torch', 'psycopg', 'sqlalchemy', 'numpy') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused_with_a_hint(run):
    result = run("plan", "mlp", "--device", "cuda:0")
    assert result.exit_code == 1
    assert "PyTorch finds no GPU here" in result.stderr
    assert "--device cpu" in result.stderr


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "cuda:-1", "cuda:0:0", "cuda:\u0662"])
def test_a_gpu_without_a_number_is_refused_before_anything_starts(run, name):
    result = run("worker", "--dsn", "dbname=nowhere", "--device", name)
    assert result.exit_code == 1
    assert "names no GPU" in result.stderr
    assert "cuda:0" in result.stderr


@pytest.mark.parametrize(
    "command",
    [("up",), ("worker", "--dsn", "dbname=nowhere"), ("calibrate",)],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(
    ("memory", "said"),
    [("400", "cannot be 400 B: no job fits"), ("900TiB", "cannot be 900.0 TiB: this machine has 3.0 GiB")],
)
def test_memory_that_is_of_no_use_or_not_there_is_refused(run, monkeypatch, tmp_path, command, memory, said):
    monkeypatch.setenv("TENSILE_FOLDER", str(tmp_path / "cluster"))
    monkeypatch.setattr(limits, "host_memory_nbytes", lambda: 3 * 2**30)
    result = run(*command, "--memory", memory)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"ERROR:  the device's memory {said}\nHINT:  ")
    assert not (tmp_path / "cluster").exists()


def test_memory_of_a_host_that_has_less_is_refused(run, monkeypatch):
    monkeypatch.setattr(limits, "host_memory_nbytes", lambda: 3 * 2**30)
    result = run("worker", "--dsn", "dbname=nowhere", "--device", "cuda:0", "--host-memory", "900TiB")
    assert result.exit_code == 1
    assert "ERROR:  memory of the host cannot be 900.0 TiB: this machine has 3.0 GiB\n" in result.stderr


def test_all_of_a_machines_memory_may_be_given_and_a_gpus_is_its_own(monkeypatch):
    monkeypatch.setattr(limits, "host_memory_nbytes", lambda: 3 * 2**30)
    for device, nbytes in (("cpu", None), ("cpu", 2**20), ("cpu", 3 * 2**30), ("cuda:0", 80 * 2**30)):
        limits.require_memory(device, nbytes)


@pytest.mark.parametrize(
    "command",
    [("up",), ("worker", "--dsn", "dbname=nowhere"), ("plan", "mlp"), ("calibrate",)],
    ids=lambda command: command[0],
)
def test_more_threads_than_a_machine_runs_are_refused(run, monkeypatch, tmp_path, command):
    monkeypatch.setenv("TENSILE_FOLDER", str(tmp_path / "cluster"))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    result = run(*command, "--threads", "100000")
    assert result.exit_code == 1
    assert result.stderr == (
        "ERROR:  100000 threads are too many for 2 cores: 16 at most\n"
        "HINT:  More than 2 make nothing faster: give --threads 2 or less.\n"
    )
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize(
    ("cache", "said"),
    [("", '"" names no folder'), (__file__, f"{__file__} is no folder")],
    ids=["none", "file"],
)
def test_a_cache_that_is_no_folder_is_refused_before_anything_starts(run, cache, said):
    result = run("worker", "--dsn", "dbname=nowhere", "--cache", cache)
    assert result.exit_code == 1
    assert f"ERROR:  {said}\nHINT:  " in result.stderr


def test_an_unknown_device_suggests_the_known_one(run):
    result = run("worker", "--dsn", "dbname=nowhere", "--device", "cpus")
    assert result.exit_code == 1
    assert 'Did you mean "cpu"?' in result.stderr


def test_a_size_that_is_none_is_refused_before_anything_starts(run, tmp_path):
    result = run("up", "--folder", str(tmp_path / "cluster"), "--memory", "plenty")
    assert result.exit_code == 1
    assert '"plenty" is no size' in result.stderr
    assert not (tmp_path / "cluster").exists()


def test_status_of_a_cluster_that_is_not_there_says_stopped(run, tmp_path):
    result = run("status", "--folder", str(tmp_path))
    assert result.exit_code == 3
    assert result.stdout.count("stopped") == 2


def test_psql_without_a_server_names_the_command_that_starts_one(run, tmp_path):
    result = run("psql", "--folder", str(tmp_path))
    assert result.exit_code == 1
    assert "tensile-db up" in result.stderr


def test_a_folder_without_a_cluster_is_left_as_it_is(run, tmp_path):
    mine = {"thesis.txt": "years", "postgres/data/PG_VERSION": "15", "postgres/data/postgresql.conf": "# own"}
    for name, text in mine.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    # One of the names that a cluster's own files have.
    (tmp_path / "lock").write_text("")
    result = run("down", "--remove", "--yes", "--folder", str(tmp_path))
    assert result.exit_code == 0
    assert f"There is no cluster in {tmp_path}; nothing was deleted." in result.stdout
    assert {name: (tmp_path / name).read_text() for name in mine} == mine
    assert (tmp_path / "lock").exists()


FOLDERS_COMMANDS = (
    ("up",),
    ("down",),
    ("down", "--remove", "--yes"),
    ("status",),
    ("psql",),
    ("doctor",),
    ("demo",),
    ("calibrate",),
    ("plan", "mlp", "--device", "sim:a6000"),
)


@pytest.mark.slow
@pytest.mark.parametrize("command", FOLDERS_COMMANDS, ids=" ".join)
def test_a_file_is_no_folder_of_a_cluster_nor_has_one(run, tmp_path, command):
    file = tmp_path / "file"
    file.write_text("kept")
    for folder in (file, file / "below"):
        result = run(*command, "--folder", str(folder))
        assert result.exit_code == 1
        assert result.stderr.startswith(f"ERROR:  {file} is no folder\nHINT:  ")
    assert file.read_text() == "kept"


@pytest.mark.slow
@pytest.mark.parametrize("command", FOLDERS_COMMANDS, ids=" ".join)
def test_no_text_is_no_folder_not_the_current_one(run, monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    refusals = [run(*command, "--folder", "")]
    monkeypatch.setenv("TENSILE_FOLDER", "")
    refusals.append(run(*command))
    for result in refusals:
        assert result.exit_code == 1
        assert result.stderr.startswith('ERROR:  "" names no folder\nHINT:  Is a variable unset?')
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_named_counts_beside_a_variable_without_one(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TENSILE_FOLDER", "")
    assert run("down", "--folder", str(tmp_path)).exit_code == 0
    monkeypatch.setenv("TENSILE_FOLDER", str(tmp_path / "named"))
    assert str(tmp_path / "named") in run("status").stdout


def test_a_folder_that_cannot_be_made_is_an_error_without_a_traceback(run):
    result = run("up", "--folder", "/proc/tensile")
    assert result.exit_code == 1
    assert "/proc/tensile cannot hold a cluster" in result.stderr
    assert "--folder" in result.stderr


def test_stopping_what_does_not_run_is_no_failure(run, tmp_path):
    assert run("down", "--folder", str(tmp_path)).exit_code == 0


def test_a_database_that_cannot_be_reached_is_an_error_without_a_traceback(run, tmp_path):
    result = run("doctor", "--dsn", f"host={tmp_path} dbname=nowhere", "--json")
    assert result.exit_code == 3
    findings = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert findings["torch"]["status"] == "ok"
    assert findings["database"]["status"] == "problem"
    assert "connection" in findings["database"]["found"]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4096", 4096),
        ("512MiB", 536_870_912),
        ("2GiB", 2_147_483_648),
        ("2g", 2_147_483_648),
        ("1.5 GiB", 1_610_612_736),
        ("2GB", 2_000_000_000),
        ("1TiB", 1_099_511_627_776),
    ],
)
def test_sizes_are_read_as_people_write_them(text, nbytes):
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 gigs", "0", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InvalidRequest, match="is no size"):
        parse_nbytes(text)


@pytest.mark.parametrize("text", ["12GB/s", "12GB", "12000000000"])
def test_rates_may_say_what_they_are_of(text):
    assert parse_rate(text) == 12_000_000_000


def test_the_package_lists_every_folder_that_belongs_to_it():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        ".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "tensile_db").rglob("__init__.py")
    }
    assert sorted(settings["packages"]) == sorted(found | {"tensile_db.migrations", "tensile_db.sql"})


def test_a_picture_in_an_unknown_format_is_refused_before_anything_is_captured(run, tmp_path):
    result = run("plan", "mlp", "--device", "sim:a6000", "--plot", str(tmp_path / "memory.doc"))
    assert result.exit_code == 1
    assert 'cannot draw a picture as "memory.doc"' in result.stderr
    assert ".png, .svg, .pdf" in result.stderr


@pytest.mark.parametrize(
    ("file", "said"),
    [("nowhere/trace.json", "there is no folder nowhere"), ("-", "a file is wanted, not standard output")],
)
def test_a_trace_is_refused_where_it_cannot_be_written(run, tmp_path, monkeypatch, file, said):
    monkeypatch.chdir(tmp_path)
    result = run("plan", "mlp", "--device", "sim:a6000", "--trace", file)
    assert result.exit_code == 1
    assert said in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_plan_is_traced_drawn_and_bounded(run, tmp_path):
    trace, picture, vector = tmp_path / "trace.json", tmp_path / "memory.png", tmp_path / "memory.SVG"
    arguments = ("plan", "mlp", "--batch-size", "64", "--device", "sim:a6000", "--optimizer", "adam")
    budget = ("--budget", "900KiB")
    result = run(*arguments, *budget, "--json", "--bound", "--trace", str(trace), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    predicted, ops = document["predicted"], document["graph"]["ops"]
    assert sum(op["latency_ns"] for op in ops) <= predicted["lower_bound_time_ns"] <= predicted["time_ns"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event.get("cat") in ("forward", "backward", "optimizer") for event in events) == len(ops)
    counted = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert max(counted) == predicted["peak_nbytes"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(*arguments, "--plot", str(vector)).exit_code == 0
    assert "<svg" in vector.read_text()
    drawn = vector.read_bytes()
    assert run(*arguments, "--plot", str(vector)).exit_code == 0
    assert vector.read_bytes() == drawn


@pytest.mark.slow
def test_a_plan_that_splits_ops_has_no_bound_and_says_so(run):
    arguments = ("plan", "mlp", "--batch-size", "4096", "--device", "sim:a6000", "--budget", "34MiB")
    result = run(*arguments, "--json", "--bound")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["plan"]["splits"]
    assert document["predicted"]["guaranteed_peak_nbytes"] <= 34 * 2**20
    assert "this plan splits some" in result.stderr


@pytest.mark.slow
def test_a_plan_in_bfloat16_is_of_smaller_activations(run):
    arguments = (
        "plan",
        "resnet10t",
        "--batch-size",
        "16",
        "--image-size",
        "64",
        "--device",
        "sim:a6000",
        "--json",
    )
    full, half = (
        json.loads(run(*arguments, "--precision", precision).stdout) for precision in ("float32", "bf16")
    )
    peaks = [plan["predicted"]["vanilla_peak_nbytes"] for plan in (full, half)]
    assert peaks[1] < 0.9 * peaks[0]
    assert any("_to_copy" in op["target"] for op in half["graph"]["ops"])


@pytest.mark.slow
def test_a_plan_with_channels_last_is_of_other_ops(run):
    arguments = ("plan", "test_efficientnet", "--batch-size", "2", "--device", "sim:a6000", "--json")
    plain, last = (
        json.loads(run(*arguments, "--memory-format", name).stdout)
        for name in ("contiguous", "channels_last")
    )
    assert plain == json.loads(run(*arguments).stdout)
    assert plain != last
    refused = run("plan", "mlp", "--device", "sim:a6000", "--memory-format", "nchw")
    assert 'there is no memory format "nchw"' in refused.stderr


def test_a_plan_in_an_unknown_precision_is_refused_with_those_that_are(run):
    result = run("plan", "mlp", "--device", "sim:a6000", "--precision", "float61")
    assert result.exit_code == 1
    assert 'there is no precision "float61"' in result.stderr
    assert '"float32", "tf32", "bfloat16" or "float16"' in result.stderr


@pytest.mark.parametrize(("told", "found"), [(None, "1000"), ("77", "77")])
def test_kernels_of_commands_wait_for_each_other_as_a_workers_do(run, monkeypatch, tmp_path, told, found):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if told is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", told)
    run("check", str(tmp_path / "nothing"))
    assert os.environ["GOMP_SPINCOUNT"] == found
