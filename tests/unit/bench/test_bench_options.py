"""What `tensile-db bench` refuses before it computes or writes anything."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensile_db.bench import exact
from tensile_db.bench.networks.workloads import WORKLOADS
from tensile_db.bench.reports.results import read
from tensile_db.cli import app
from tensile_db.commands import bench_options, benching
from tensile_db.errors import InvalidRequest

RESULTS = Path(__file__).parents[3] / "bench/results"
COMMANDS = sorted(
    command.name or command.callback.__name__.replace("_", "-")
    for command in benching.app.registered_commands
)
WRITING = [command for command in COMMANDS if command not in ("join", "docs")]
OF_NETWORKS = [command for command in WRITING if command not in ("ablations", "exact", "serving")]
OF_POLICIES = [command for command in OF_NETWORKS if command not in ("bounds", "search", "sharing")] + [
    "exact"
]


@pytest.fixture
def bench(monkeypatch):
    """Runs a command that must be refused with a sentence and a hint, and returns them."""

    def computed(*_, **__):
        raise AssertionError("something was computed")

    # All that benchmarks compute begins with one of these.
    monkeypatch.setattr(bench_options, "captures", computed)
    monkeypatch.setattr(exact, "run", computed)
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})

    def run(*arguments):
        result = runner.invoke(app, ["bench", *map(str, arguments)])
        assert isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == 1
        sentence, hint = result.stderr.splitlines()
        assert sentence.startswith("ERROR:  ")
        assert hint.startswith("HINT:  ")
        return sentence

    return run


@pytest.mark.parametrize("command", WRITING)
def test_a_file_is_no_folder_to_write_results_into(bench, command, tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    assert f"{file} is no folder" in bench(command, "--out", file)
    assert file.read_text() == "kept"


@pytest.mark.parametrize("command", WRITING)
def test_no_text_is_no_folder_not_the_current_one(bench, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert '"" names no folder' in bench(command, "--out", "")
    assert list(tmp_path.iterdir()) == []


# Not even root may write there.
@pytest.mark.parametrize("folder", ["/proc", "/proc/results"])
def test_a_folder_that_cannot_be_made_or_written_into_is_refused(bench, folder):
    assert f"cannot write to {folder}: " in bench("exact", "--out", folder)


@pytest.mark.parametrize("command", WRITING)
def test_an_empty_name_is_refused(bench, command, tmp_path):
    assert '--name is ""' in bench(command, "--out", tmp_path, "--name", "")


@pytest.mark.parametrize("name", ["a/b", "/a", "../a", "a" * 201])
def test_a_name_that_no_file_can_have_is_refused(bench, name, tmp_path):
    assert f'--name is "{name}"' in bench("exact", "--out", tmp_path, "--name", name)


@pytest.mark.parametrize("command", OF_NETWORKS)
def test_no_networks_are_refused(bench, command, tmp_path):
    assert '--networks is ""' in bench(command, "--out", tmp_path, "--networks", "")


@pytest.mark.slow
@pytest.mark.parametrize("command", OF_NETWORKS)
def test_a_network_that_there_is_not_is_refused(bench, command, tmp_path):
    of_what = "workload of Salus' table 3" if command == "search" else "network"
    known = "resnet50_50" if command == "search" else "vgg16"
    networks = f"{known},resnet51"
    assert f'unknown {of_what} "resnet51"' in bench(command, "--out", tmp_path, "--networks", networks)


@pytest.mark.parametrize("text", [",", " , "])
def test_no_networks_between_commas_are_refused(bench, text, tmp_path):
    assert f'--networks is "{text}"' in bench("single", "--out", tmp_path, "--networks", text)


@pytest.mark.parametrize("command", OF_POLICIES)
def test_no_policies_between_commas_are_refused(bench, command, tmp_path):
    assert '--policies is ","' in bench(command, "--out", tmp_path, "--policies", ",")


def test_no_part_of_planning_times_is_measured_where_each_is_to_be_measured_alone(bench, tmp_path):
    sentence = bench("plan-time", "--only-first", "--only-again", "--out", tmp_path)
    assert "--only-again and --only-first each leave out what the other measures" in sentence
    assert list(tmp_path.iterdir()) == []


def test_nothing_stands_for_all_policies():
    assert {"vanilla", "tensile", "auto"} <= set(bench_options.policies(""))


def test_results_are_found_and_written_under_the_name_they_are_given(tmp_path):
    (tmp_path / "phases.json").write_text((RESULTS / "phases_a6000.json").read_text())
    found = bench_options.known(tmp_path, "phases", "phases", "sim:p100")
    assert found == read(RESULTS / "phases_a6000.json")
    bench_options.write(found, tmp_path / "new", None)
    assert read(tmp_path / "new/phases_a6000.json")["rows"] == found["rows"]


def test_results_of_another_command_are_kept_beside(tmp_path, monkeypatch):
    document = {
        name: value
        for name, value in read(RESULTS / "phases_a6000.json").items()
        if name not in ("format", "command", "at", "machine", "versions", "later")
    }
    for number, argument in enumerate(("one", "one", "two", "three")):
        monkeypatch.setattr("sys.argv", ["tensile-db", "bench", "phases", argument])
        bench_options.write(document | {"seen": number}, tmp_path, None)
    commands = {path.name: read(path)["command"].split()[-1] for path in tmp_path.glob("*.json")}
    assert commands == {
        "phases_a6000.json": "three",
        "phases_a6000.before1.json": "one",
        "phases_a6000.before2.json": "two",
    }
    # Run again, a command replaces its own.
    assert read(tmp_path / "phases_a6000.before1.json")["seen"] == 1
    # One that is made of the former results has them: they are not kept twice.
    monkeypatch.setattr("sys.argv", ["tensile-db", "bench", "phases", "four"])
    bench_options.write(document, tmp_path, None, has_former=True)
    assert len(list(tmp_path.glob("*.json"))) == 3
    assert read(tmp_path / "phases_a6000.json")["command"].endswith("four")


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_what_is_no_result_is_kept_too(tmp_path, text):
    document = read(RESULTS / "phases_a6000.json")
    (tmp_path / "mine.json").write_text(text)
    bench_options.write(document, tmp_path, "mine")
    assert (tmp_path / "mine.before1.json").read_text() == text


def test_what_is_no_file_is_moved_away(tmp_path):
    os.mkfifo(tmp_path / "mine.json")
    bench_options.write(read(RESULTS / "phases_a6000.json"), tmp_path, "mine")
    assert (tmp_path / "mine.before1.json").is_fifo()


@pytest.mark.parametrize("text", ["0", "101", "50,1000", "12.5", ",", "x", "1" * 5000])
def test_budgets_that_are_no_percents_are_refused(bench, text, tmp_path):
    assert f'--budgets is "{text}"' in bench("single", "--out", tmp_path, "--budgets", text)


@pytest.mark.parametrize("command", [command for command in WRITING if command not in ("exact", "serving")])
def test_a_file_is_no_folder_for_captures(bench, command, tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    assert f"{file} is no folder" in bench(command, "--out", tmp_path, "--cache", file)
    assert file.read_text() == "kept"


@pytest.mark.parametrize("command", [command for command in WRITING if command not in ("exact", "serving")])
def test_no_text_is_no_folder_for_captures(bench, command, tmp_path):
    assert '"" names no folder' in bench(command, "--out", tmp_path, "--cache", "")


def test_names_given_twice_count_once():
    assert bench_options.names("b, a,b") == ["b", "a"]
    assert bench_options.policies("auto,auto") == ["auto"]
    assert bench_options.percents("50,30,50") == [50, 30]


def test_an_interrupted_run_leaves_no_results_and_says_that_it_was_interrupted(monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(exact, "run", interrupted)
    result = CliRunner(env={"TERM": "dumb"}).invoke(app, ["bench", "exact", "--out", str(tmp_path / "out")])
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert not (tmp_path / "out").exists()


HEAD = {"command": "a", "at": "b", "machine": {}, "versions": {}, "device": {}}
#: Files that are no results, by what is said of them.
NO_RESULTS = {
    "is not JSON": ["", "# A", "{", b"\xff\xfe"],
    "has no results": [
        *("{}", "[]", "1", '"format"'),
        *(json.dumps({"format": 1, **more}) for more in ({}, {"bench": "scale"})),
        *(json.dumps({"format": 1, "bench": bench, **HEAD}) for bench in ("scales", [], None)),
    ],
    "has results in format 2, and this version reads format 1": ['{"format": 2}'],
}
WRONG_FILES = [(content, said) for said, contents in NO_RESULTS.items() for content in contents]


@pytest.mark.parametrize(("content", "said"), WRONG_FILES)
def test_a_file_without_results_is_not_read(tmp_path, content, said):
    path = tmp_path / "results.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidRequest) as refused:
        read(path)
    assert refused.value.message.startswith(f"{path} {said}")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("name", "said"), [("none.json", "No such file"), ("folder", "Is a directory"), ("wrong.json", "")]
)
def test_joining_what_is_no_results_file_is_refused_and_writes_nothing(bench, tmp_path, name, said):
    (tmp_path / "folder").mkdir()
    (tmp_path / "wrong.json").write_text("{}")
    whole = tmp_path / "whole.json"
    whole.write_text((RESULTS / "phases_a6000.json").read_text())
    before = whole.read_text()
    wrong = tmp_path / name
    for sentence in (bench("join", wrong, "--into", whole), bench("join", whole, "--into", wrong)):
        assert str(wrong) in sentence
        assert said in sentence
    assert whole.read_text() == before


@pytest.fixture
def page(tmp_path):
    """The options of a page that can be written, but for its results and what a test changes."""
    (tmp_path / "page.md").write_text("<!-- results: phases_a6000 -->\n\n<!-- results: none -->\n")
    (tmp_path / "empty").mkdir()
    options = {"results": RESULTS, "words": tmp_path / "page.md", "output": tmp_path / "made.md"}
    return lambda **changed: [f"--{name}={path}" for name, path in (options | changed).items()]


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("words", "none.md", "cannot read {}: No such file or directory"),
        ("words", "empty", "cannot read {}: Is a directory"),
        ("output", "empty", "{} is a folder"),
        ("results", "none", "{} has none of the results that "),
        ("results", "empty", "{} has none of the results that "),
        ("results", "page.md", "{} has none of the results that "),
    ],
)
def test_a_page_of_what_is_not_there_is_refused_and_the_one_there_is_stays(
    bench, page, tmp_path, option, name, said
):
    (tmp_path / "made.md").write_text("kept")
    assert said.format(tmp_path / name) in bench("docs", *page(**{option: tmp_path / name}))
    assert (tmp_path / "made.md").read_text() == "kept"


def test_a_page_into_a_folder_that_is_not_there_is_refused(bench, page, tmp_path):
    output = tmp_path / "none" / "made.md"
    assert f"there is no folder {output.parent}" in bench("docs", *page(output=output))


def test_words_that_are_no_text_are_refused(bench, page, tmp_path):
    (tmp_path / "page.md").write_bytes(b"\xff\xfe")
    assert f"cannot read {tmp_path / 'page.md'}: it is not text" in bench("docs", *page())


def test_words_without_a_place_for_results_are_refused(bench, page, tmp_path):
    (tmp_path / "page.md").write_text("# Results\n")
    assert f"{tmp_path / 'page.md'} has no place for results" in bench("docs", *page())


def test_results_are_not_joined_into_themselves(bench, tmp_path):
    file = tmp_path / "results.json"
    file.write_text((RESULTS / "phases_a6000.json").read_text())
    assert f"{file} would be put into itself" in bench("join", file, "--into", file)


def test_a_page_of_some_of_its_results_is_written(page, tmp_path):
    result = CliRunner().invoke(app, ["bench", "docs", *page()])
    assert result.exit_code == 0, result.output
    made = (tmp_path / "made.md").read_text()
    assert "| network |" in made
    assert made.endswith("Not run yet.\n")


def test_the_help_names_all_workloads():
    assert bench_options.WORKLOAD_NAMES.split(", ") == [*WORKLOADS]
