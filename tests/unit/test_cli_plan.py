"""What `tensile-db plan` writes and refuses."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

from tensile_db.capture.networks import architectures
from tensile_db.cli import app
from tensile_db.commands import console
from tensile_db.commands.budgets import EagersShare, parse_budget
from tensile_db.commands.plan_results import format_ms
from tensile_db.errors import InvalidRequest
from tensile_db.scheduler import joint
from tests.patience import PATIENCE_S
from tests.plans.oracle import replay

#: Small, and with tensors that the host has already when they leave once more.
PLAN = ("plan", "mlp", "--batch-size", "64", "--device", "sim:a6000", "--optimizer", "adam")


@pytest.fixture
def run():
    """Run the command."""
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("option", ["--trace", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_captured(run, tmp_path, option):
    folder = tmp_path / "folder.svg"
    folder.mkdir()
    for file in (folder, "/proc/nothing.svg"):
        result = run(*PLAN, option, str(file))
        assert (result.exit_code, f"cannot write to {file}" in result.stderr) == (1, True), result.output
        assert "capturing" not in result.output
    assert list(tmp_path.iterdir()) == [folder]


def test_what_is_looked_at_stays_as_it_is(run, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    # Refused after the files have been looked at.
    assert run(*PLAN, "--policy", "none", "--trace", str(link)).exit_code == 1
    assert link.is_symlink()
    assert not link.exists()
    result = run(*PLAN, "--trace", str(tmp_path / ("a" * 300)))
    assert "File name too long" in result.stderr


def test_a_trace_is_read_from_a_pipe(run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        assert run(*PLAN, "--trace", str(pipe)).exit_code == 0
        assert json.loads(read.result(PATIENCE_S))["traceEvents"]


def test_a_full_disk_is_told_of(run):
    result = run(*PLAN, "--trace", "/dev/full")
    assert result.exit_code == 1
    assert "cannot write to /dev/full: No space left on device" in result.stderr


def test_trace_and_picture_are_two_files(run, tmp_path):
    result = run(*PLAN, "--trace", str(tmp_path / "a.svg"), "--plot", str(tmp_path / "a.svg"))
    assert result.exit_code == 1
    assert "cannot be both trace and picture" in result.stderr


def test_a_budget_beyond_the_device_is_noted_and_one_beyond_any_refused(run):
    result = run(*PLAN, "--budget", "100TiB")
    assert result.exit_code == 0, result.output
    assert "Note: sim:a6000 has no more than 48.0 GiB." in result.stderr
    result = run(*PLAN, "--budget", "99999999999TiB")
    assert result.exit_code == 1
    assert "No machine has so much" in result.stderr
    assert run(*PLAN, "--budget", "9" * 320).exit_code == 1


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("50%", EagersShare(percent=Fraction(50))),
        (" 33.3 % ", EagersShare(percent=Fraction(333, 10))),
        ("120%", EagersShare(percent=Fraction(120))),
        ("2GiB", 2_147_483_648),
    ],
)
def test_a_budget_is_a_size_or_a_share_of_eagers_peak(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0%", "more than 0%"),
        ("0.0%", "more than 0%"),
        ("-5%", "Write 50%"),
        ("%", "Write 50%"),
        ("half%", "Write 50%"),
        ("50%%", "Write 50%"),
        ("5e1%", "Write 50%"),
        ("50% of it", "Write 50%"),
        ("9" * 10_000 + "%", "Eager itself needs 100%"),
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_share_is_refused(text, said):
    with pytest.raises(InvalidRequest, match="is no share") as refusal:
        parse_budget(text)
    assert said in refusal.value.hint


@pytest.mark.parametrize(("percent", "nbytes"), [("50", 500), ("33.3", 333), ("0.01", 1), ("1000000", 10**7)])
def test_a_share_is_rounded_down_and_at_least_a_byte(percent, nbytes):
    assert EagersShare(percent=Fraction(percent)).nbytes_of(1001 if nbytes < 1000 else 1000) == nbytes


@pytest.mark.slow
def test_a_share_of_eagers_peak_is_the_budget_of_so_many_bytes(run):
    peak_nbytes = json.loads(run(*PLAN, "--json").stdout)["predicted"]["vanilla_peak_nbytes"]
    within = json.loads(run(*PLAN, "--json", "--budget", "70%").stdout)
    assert within["device"]["memory_nbytes"] == int(0.7 * peak_nbytes)
    assert within["predicted"]["guaranteed_peak_nbytes"] <= 0.7 * peak_nbytes
    assert within == json.loads(run(*PLAN, "--json", "--budget", str(int(0.7 * peak_nbytes))).stdout)
    eager = run(*PLAN, "--policy", "vanilla", "--budget", "100%")
    assert (eager.exit_code, "Note" in eager.stderr) == (0, False)
    beyond = run(*PLAN, "--policy", "vanilla", "--budget", "120%")
    assert beyond.exit_code == 0
    assert "Note: eager holds no more than" in beyond.stderr
    refused = run(*PLAN, "--budget", "1%")
    assert refused.exit_code == 1
    assert "the job needs at least" in refused.stderr


def test_a_share_that_is_none_is_refused_before_anything_is_captured(run):
    refused = run(*PLAN, "--budget", "0%")
    assert refused.exit_code == 1
    assert refused.stderr == 'ERROR:  "0%" is no share\nHINT:  It must be more than 0% of eager\'s peak.\n'


def test_the_least_that_an_error_names_is_enough(run):
    result = run(*PLAN, "--policy", "vanilla", "--budget", "500KiB")
    assert result.exit_code == 1
    said = result.stderr.split("at least ")[1].split(" of device memory")[0]
    assert run(*PLAN, "--policy", "vanilla", "--budget", said).exit_code == 0


@pytest.mark.slow
def test_swaps_told_and_traced_are_copies_and_the_trace_tells_its_period(run, tmp_path):
    trace = tmp_path / "trace.json"
    arguments = (*PLAN, "--budget", "850KiB", "--trace", str(trace))
    told = " ".join(run(*arguments).stdout.split())
    document = json.loads(trace.read_text())
    swapped = [event for event in document["traceEvents"] if event.get("cat") == "swap_out"]
    copied = [event for event in swapped if event["ph"] == "X"]
    assert 0 < len(copied) < len(swapped)
    assert all(event["dur"] > 0 for event in copied)
    assert all(event["args"]["copied_nbytes"] == event["args"]["nbytes"] > 0 for event in copied)
    # What the host has is let go at an instant.
    let_go = [event for event in swapped if event["ph"] == "i"]
    assert len(copied) + len(let_go) == len(swapped)
    assert all(event["args"]["nbytes"] > event["args"]["copied_nbytes"] == 0 for event in let_go)
    assert f"{len(copied)} swap-outs of" in told
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    computed = [event for event in events if event["tid"] == 1]
    assert max(event["ts"] + event["dur"] for event in computed) <= document["otherData"]["period_ns"] / 1000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("resnet18", "--features", "7"), '--features means nothing to "resnet18"'),
        (("mlp", "--image-size", "64"), '--image-size means nothing to "mlp"'),
        (("bert", "--classes", "3"), '--classes means nothing to "bert"'),
        (("gpt2",), 'unknown architecture "gpt2"'),
        (
            ("mlp", "--memory-format", "channels_last"),
            '--memory-format means nothing to "mlp", which has no convolutions',
        ),
    ],
)
def test_what_means_nothing_to_a_network_is_refused(run, arguments, said):
    result = run("plan", *arguments, "--device", "sim:a6000")
    assert result.exit_code == 1
    assert said in result.stderr


@pytest.fixture
def their_package(monkeypatch):
    """An installed package that offers `theirs`: a convolution for images, a layer for rows of a table."""

    def build(num_outputs, in_channels, image_size):
        first = [] if image_size is None else [nn.Conv2d(in_channels, 4, 3), nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*first, nn.Flatten(), nn.Linear(4 if first else in_channels, num_outputs))

    monkeypatch.setitem(sys.modules, "their_package", SimpleNamespace(build=build))
    point = EntryPoint(name="theirs", value="their_package:build", group=architectures.ENTRY_POINT_GROUP)
    monkeypatch.setattr(architectures, "_offered", lambda: {"theirs": point})


@pytest.mark.slow
@pytest.mark.usefixtures("their_package")
@pytest.mark.parametrize(
    ("options", "nbytes"),
    [(("--image-size", "12"), 5 * 3 * 12 * 12 * 4), (("--features", "7"), 5 * 7 * 4), ((), 5 * 16 * 4)],
)
def test_a_packages_network_is_of_images_where_their_size_is_given(run, options, nbytes):
    result = run("plan", "theirs", "--batch-size", "5", "--device", "sim:a6000", *options, "--json")
    assert result.exit_code == 0, result.output
    tensors = json.loads(result.stdout)["graph"]["tensors"]
    assert nbytes in [tensor["nbytes"] for tensor in tensors if tensor["role"] == "input"]


@pytest.mark.usefixtures("their_package")
def test_a_packages_network_is_not_of_both(run):
    result = run("plan", "theirs", "--image-size", "12", "--features", "7", "--device", "sim:a6000")
    assert '--features means nothing to "theirs"' in result.stderr


@pytest.mark.parametrize(("ns", "said"), [(15_400_000, "15.4 ms"), (243_211, "0.243 ms")])
def test_times_are_told_to_what_differs(ns, said):
    assert format_ms(ns) == said


def test_an_unknown_policy_is_refused_before_anything_is_captured(run):
    result = run(*PLAN, "--policy", "foo")
    assert result.exit_code == 1
    assert result.stderr.startswith('ERROR:  unknown policy "foo"')


@pytest.mark.slow
def test_a_network_of_the_benchmarks_is_planned_and_says_what_it_is(run):
    arguments = ("plan", "gcn", "--batch-size", "1", "--device", "sim:a6000", "--optimizer", "adam", "--json")
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["captured"]["architecture"], document["captured"]["batch_size"]) == ("gcn", 1)
    assert set(document["versions"]) == {"python", "tensile_db", "torch", "timm"}
    assert replay(document).peak_nbytes == document["predicted"]["peak_nbytes"]


@pytest.mark.slow
def test_the_document_says_when_ops_and_copies_run(run):
    document = json.loads(run(*PLAN, "--budget", "850KiB", "--json").stdout)
    told = document["timeline"]
    assert set(told) == {"period_ns", "runs", "copies"}
    assert told["period_ns"] == document["predicted"]["time_ns"]
    assert [run["op"] for run in told["runs"] if not run["recompute"]] == document["plan"]["order"]
    swaps = [event for event in document["plan"]["events"] if event["kind"] in ("swap_out", "swap_in")]
    assert len(told["copies"]) == len(swaps) > 0
    begins_ns = [copy["begin_ns"] for copy in told["copies"]]
    assert begins_ns == sorted(begins_ns)
    told["copies"].sort(key=lambda copy: (copy["begin_ns"], copy["tensor"], copy["to_host"]))
    assert told == replay(document, iterations=14).timeline


@pytest.mark.slow
@pytest.mark.usefixtures("little_effort")
def test_the_lower_bound_is_the_captured_networks_where_tensors_are_packed_and_ops_split(run):
    network = ("plan", "test_resnet", "--image-size", "64", "--batch-size", "16", "--optimizer", "adam")
    wide, narrow = (
        json.loads(run(*network, "--device", "sim:a6000", "--json", *budget).stdout)
        for budget in ((), ("--budget", "4MiB"))
    )
    assert narrow["plan"]["packed"]
    assert narrow["plan"]["splits"]
    bound_nbytes = narrow["predicted"]["lower_bound_peak_nbytes"]
    assert bound_nbytes == wide["predicted"]["lower_bound_peak_nbytes"]
    assert narrow["predicted"]["peak_nbytes"] < bound_nbytes


@pytest.mark.slow
def test_a_plan_made_at_once_keeps_within_the_budget_and_splits_where_it_must(run, monkeypatch):
    network = ("plan", "test_resnet", "--image-size", "64", "--batch-size", "16", "--device", "sim:a6000")
    asked = []
    plan_jobs = joint.plan_jobs
    monkeypatch.setattr(joint, "plan_jobs", lambda jobs, spec: asked.extend(jobs) or plan_jobs(jobs, spec))
    for budget, nbytes, must_split in (("4MiB", 4 * 2**20, True), ("8MiB", 8 * 2**20, False)):
        result = run(*network, "--budget", budget, "--at-once", "--json")
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert bool(document["plan"].get("splits")) is must_split
        assert document["predicted"]["guaranteed_peak_nbytes"] <= nbytes
    assert [job.at_once for job in asked] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("slow_s", [0.0, 1e6])
def test_planning_that_takes_long_says_why(run, monkeypatch, slow_s):
    monkeypatch.setattr(console, "_SLOW_S", slow_s)
    result = run(*PLAN, "--budget", "850KiB")
    assert result.exit_code == 0
    assert ("still planning: where memory is short" in result.stderr) == (slow_s == 0)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "is_told"), [((), True), (("--bound",), False)])
def test_what_the_ops_alone_take_is_told_from_a_bound_that_was_solved_for(run, options, is_told):
    result = run(*PLAN, "--budget", "60%", *options)
    assert result.exit_code == 0, result.stderr
    (iteration,) = (line for line in result.stdout.splitlines() if "iteration │" in line)
    assert ("(ops alone)" in iteration) is is_told


def test_the_help_says_which_sizes_are_binary():
    (option,) = (each for each in get_command(app).commands["plan"].params if each.name == "budget")
    assert "700M, which are binary" in option.help
    assert parse_budget("700M") == parse_budget("700MiB") > parse_budget("700MB") == 700 * 10**6


def test_a_machine_too_slow_for_any_clock_is_refused(run, tmp_path):
    file = tmp_path / "slow.json"
    file.write_text('{"like": "a6000", "memory_bytes_per_s": 1, "flops_per_s": 1}')
    result = run(*PLAN[:4], "--device", f"sim:{file}", "--budget", "60%")
    assert result.exit_code == 1
    assert "no clock goes so far" in result.stderr


def test_with_a_frozen_backbone_less_is_held(run):
    held = []
    for option in ((), ("--freeze-backbone",)):
        result = run(*PLAN, *option, "--json")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert found["captured"]["freeze_backbone"] is bool(option)
        roles = [tensor["role"] for tensor in found["graph"]["tensors"]]
        held.append((found["predicted"]["vanilla_peak_nbytes"], roles.count("optimizer_state")))
    # Of a weight and a bias, two moments each.
    assert held[1][1] == 4
    assert held[1] < held[0]
    result = run("plan", "gpt", "--freeze-backbone", "--device", "sim:a6000")
    assert '--freeze-backbone means nothing to "gpt"' in result.stderr
