"""What `tensile-db check` says of plans, and of files that are none."""

import json

import pytest
from typer.testing import CliRunner

from tensile_db.cli import app
from tensile_db.commands import checking

PLAN = ("plan", "mlp", "--batch-size", "64", "--device", "sim:a6000", "--optimizer", "adam")


@pytest.fixture
def run():
    """Run the command."""
    return lambda *arguments, **given: CliRunner().invoke(app, arguments, **given)


@pytest.fixture(scope="module")
def printed():
    """Return what `tensile-db plan --json` prints of a plan with swaps."""
    result = CliRunner().invoke(app, (*PLAN, "--budget", "50%", "--json"))
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture
def file(printed, tmp_path):
    """Return a file with that plan."""
    (tmp_path / "plan.json").write_text(printed)
    return tmp_path / "plan.json"


@pytest.mark.slow
def test_a_plan_as_it_was_printed_is_valid_and_as_it_was_told(run, file, printed):
    told = json.loads(printed)
    result = run("check", str(file))
    assert result.exit_code == 0, result.stderr
    rows = {row[0].strip(): row[1:] for line in result.stdout.splitlines() if (row := line.split("│")[1:-1])}
    assert [cell.strip() for cell in rows["peak"][1:]] == [f"{told['predicted']['peak_nbytes']:,} B"] * 2
    assert [cell.strip() for cell in rows["iteration"][1:]] == [f"{told['predicted']['time_ns']:,} ns"] * 2
    assert "valid, and within the device's" in result.stdout
    figures = json.loads(run("check", str(file), "--json").stdout)
    assert {name: figures[name] for name in figures["predicted"]} == figures["predicted"]
    assert figures["predicted"].items() <= told["predicted"].items()
    assert (figures["fits"], figures["memory_nbytes"]) == (True, told["device"]["memory_nbytes"])


@pytest.mark.slow
def test_a_plan_with_splits_on_a_device_whose_ops_cost_no_start_is_valid(run, tmp_path):
    (tmp_path / "mine.json").write_text('{"like": "p100", "op_overhead_ns": 0}')
    network = ("plan", "mlp", "--batch-size", "256", "--features", "40", "--optimizer", "adam")
    device = ("--device", f"sim:{tmp_path / 'mine.json'}")
    printed = run(*network, *device, "--policy", "tsplit", "--budget", "60%", "--json").stdout
    assert json.loads(printed)["plan"]["splits"]
    result = run("check", "-", input=printed)
    assert result.exit_code == 0, result.stderr


@pytest.mark.slow
def test_standard_input_is_read_and_predictions_may_be_missing(run, printed):
    document = json.loads(printed)
    predicted = document.pop("predicted")
    result = run("check", "-", "--json", input=json.dumps(document))
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["predicted"] is None
    assert figures["peak_nbytes"] == predicted["peak_nbytes"]
    assert run("check", "-", input=json.dumps(document)).exit_code == 0


def test_a_plan_beyond_its_device_is_told_of_with_its_figures(run, printed):
    document = json.loads(printed)
    document["device"]["memory_nbytes"] = 1000
    result = run("check", "-", "--json", input=json.dumps(document))
    assert (result.exit_code, json.loads(result.stdout)["fits"]) == (1, False)
    assert "but its device has 1000 B" in result.stderr
    assert "valid" not in run("check", "-", input=json.dumps(document)).stdout


def test_an_edit_that_loses_a_tensor_is_named(run, printed):
    document = json.loads(printed)
    events = document["plan"]["events"]
    events.remove(next(event for event in events if event["kind"] == "swap_in"))
    result = run("check", "-", "--json", input=json.dumps(document))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("ERROR:  instruction ")
    assert "HINT:  Instructions are what ops and events become" in result.stderr


@pytest.mark.slow
def test_the_trace_is_the_one_that_the_plan_has(run, file, tmp_path):
    of_check, of_plan = tmp_path / "check.json", tmp_path / "of_plan.json"
    assert run("check", str(file), "--trace", str(of_check)).exit_code == 0
    assert run(*PLAN, "--budget", "50%", "--trace", str(of_plan)).exit_code == 0
    # Their titles differ.
    traces = [json.loads(trace.read_text()) for trace in (of_check, of_plan)]
    assert traces[0]["traceEvents"][1:] == traces[1]["traceEvents"][1:]
    kept = file.read_bytes()
    refused = run("check", str(file), "--trace", str(file))
    assert (refused.exit_code, "cannot be both plan and trace" in refused.stderr) == (1, True)
    assert file.read_bytes() == kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no JSON"),
        (b"policy: auto", "is no JSON"),
        (b"\xff\xfe\xfd", "is no JSON"),
        (b"1" * 10_000, "is no JSON"),
        (b"[" * 200_000, "is nested too deeply"),
        (b"null", "the document is null, not an object"),
        (b'{"format": 2}', "the document's format is 2: this version reads 1"),
        (b'{"format": 1}', "the document does not say graph"),
        (b" " * 2000 + b"{}", "has more than 1.0 KiB: no plan"),
    ],
    ids=lambda value: str(value)[:16],
)
def test_a_file_that_holds_no_plan_is_refused(run, monkeypatch, tmp_path, content, said):
    if content.startswith(b" "):
        monkeypatch.setattr(checking, "_MOST_NBYTES", 1024)
    (tmp_path / "plan.json").write_bytes(content)
    for result in (run("check", str(tmp_path / "plan.json")), run("check", "-", input=content)):
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("ERROR:  ")
        assert said in result.stderr
        assert "\nHINT:  " in result.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", '"" names no file'),
        ("/nowhere/plan.json", "cannot read /nowhere/plan.json: No such file or directory"),
        ("/tmp", "cannot read /tmp: Is a directory"),
        ("a\0b", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(run, name, said):
    result = run("check", name)
    assert result.exit_code == 1
    assert said in result.stderr


def test_an_endless_file_is_read_only_so_far(run, monkeypatch):
    monkeypatch.setattr(checking, "_MOST_NBYTES", 2**20)
    assert "/dev/zero has more than 1.0 MiB: no plan" in run("check", "/dev/zero").stderr


def test_names_are_printed_as_they_are(run, printed):
    document = json.loads(printed)
    document["plan"]["policy"], document["device"]["name"] = "[/bold] mine", "[red]sim:it"
    result = run("check", "-", input=json.dumps(document))
    assert result.exit_code == 0, result.output
    assert "[/bold] mine on [red]sim:it" in result.stdout
    document["device"]["name"] = "\ud800"
    assert run("check", "-", input=json.dumps(document)).exit_code == 1
