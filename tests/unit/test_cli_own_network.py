"""A network of one's own: what docs/planner/your_own.md shows is planned and benched; faults are told."""

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tensile_db.capture.networks import architectures
from tests.cli_runs import refusal, run

ROOT = Path(__file__).parents[2]
PLAN = ("--batch-size", "8", "--device", "sim:a6000", "--json")

HEAD = """
import torch
from torch import nn
"""
#: 3 numbers -> 4 classes.
ROWS = f"""{HEAD}
def network():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)), torch.zeros(3)
"""


@pytest.fixture
def network(own_module):
    """Write a module and return the name of its network."""
    return lambda text, module="mine": f"{own_module(text, module)}:network"


def planned(*arguments):
    result = run("plan", *arguments, *PLAN)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def inputs_nbytes(document):
    return [each["nbytes"] for each in document["graph"]["tensors"] if each["role"] == "input"]


@pytest.mark.slow
def test_the_one_in_the_documentation_is_planned_with_a_target_for_each_token(network):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/planner/your_own.md").read_text(), re.DOTALL)
    (text,) = (block for block in blocks if "def network" in block)
    document = planned(network(text, "words"), "--budget", "50%", "--at-once")
    assert document["captured"]["architecture"] == "words:network"
    assert inputs_nbytes(document) == [8 * 256 * 8, 8 * 256 * 8]
    assert document["predicted"]["msr"] >= 0.5


def test_a_row_of_numbers_has_one_target(network):
    assert inputs_nbytes(planned(network(ROWS))) == [8 * 3 * 4, 8 * 8]


def test_what_it_prints_is_not_among_the_results(network):
    module = f"""{HEAD}
print("imported")

class Saying(nn.Linear):
    def forward(self, rows):
        print("run")
        return super().forward(rows)

def network():
    print("built")
    return Saying(3, 4), torch.zeros(3)
"""
    result = run("plan", network(module), *PLAN)
    assert json.loads(result.stdout)
    assert {"imported", "built", "run"} <= {*result.stderr.splitlines()}


@pytest.mark.slow
def test_policies_are_compared_on_it_and_on_an_architecture(network, tmp_path):
    result = run(
        *("bench", "single", "--networks", f"{network(ROWS)},test_resnet", "--policies", "tensile,vdnn_all"),
        *("--budgets", "80", "--out", str(tmp_path / "out"), "--name", "made"),
    )
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "out/made.json").read_text())
    assert [each["network"] for each in document["networks"]] == ["mine:network", "test_resnet"]
    assert [[*each["policies"]] for each in document["networks"]] == [["tensile", "vdnn_all"]] * 2
    assert "| mine:network | tensile |" in result.stdout
    assert "| test_resnet | tensile |" in result.stdout


@pytest.mark.slow
def test_it_is_really_trained_on_a_device_of_this_machine(network, tmp_path):
    result = run(
        *("bench", "single", "--networks", network(ROWS), "--policies", "tensile", "--budgets", "80"),
        *("--device", "cpu", "--no-bound", "--out", str(tmp_path / "out"), "--name", "made"),
    )
    assert result.exit_code == 0, result.output
    (made,) = json.loads((tmp_path / "out/made.json").read_text())["networks"]
    assert made["measured"]["tensile"]["peak_nbytes"] <= made["measured"]["tensile"]["guaranteed_peak_nbytes"]


TOO_FEW = "It must return one for each class, two or more."
MADE = (
    'Return (nn.Module, torch.Tensor); docs/planner/your_own.md, "A network of your own", has one that can be'
    " copied."
)
OUTPUTS = (
    "It must return a row of outputs, one for each class, for each target: where tokens have a target each,"
    " (rows x tokens, classes), e.g. by flatten(0, 1)."
)
SHAPES = (
    "cannot run on batches of 2 x 5: a and b must have same reduction dim, but got"
    " [2, 5] X [2097152, 1048576]."
)
ROW = "A row is a float32 or int64 tensor with something in it."
UNFIT = "Correct the network's own code, or the row that its function returns."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said", "hint"),
    [
        ("return nn.Linear(3, 4)", "gave Linear, not a module and one of its rows", MADE),
        ("return None", "gave NoneType, not a module and one of its rows", MADE),
        ("return nn.Linear, torch.zeros(3)", "gave (type, Tensor), not a module and one of its rows", MADE),
        ("return nn.Linear(3, 4), 3", "gave (Linear, int), not a module and one of its rows", MADE),
        (
            "return nn.Linear(3, 4), torch.zeros(3, dtype=torch.float64)",
            "takes rows of torch.float64 and shape (3,)",
            ROW,
        ),
        ("return nn.Linear(3, 4), torch.zeros(0, 3)", "takes rows of torch.float32 and shape (0, 3)", ROW),
        ("return nn.Linear(3, 1), torch.zeros(3)", "returns 1 outputs a row", TOO_FEW),
        (
            "return nn.Linear(3, 4), torch.zeros(5, 3)",
            "returns a tensor of shape (2, 5, 4) for 2 rows of its input",
            OUTPUTS,
        ),
        ("return nn.LSTM(3, 4), torch.zeros(5, 3)", "returns a tuple for 2 rows of its input", OUTPUTS),
        (
            # Were it made on the host, for its weights there would not be the memory.
            "return nn.Linear(2**21, 2**20), torch.zeros(5)",
            SHAPES,
            UNFIT,
        ),
    ],
)
def test_one_that_cannot_be_trained_is_refused(network, body, said, hint, tmp_path):
    name = network(f"{HEAD}\ndef network():\n    {body}\n")
    assert refusal("plan", name, *PLAN) == f'network "mine:network" {said}\nHINT:  {hint}\n'


@pytest.mark.parametrize(
    ("raised", "told"), [("KeyError('width')", "KeyError: 'width'"), ("SystemExit(3)", "SystemExit: 3")]
)
@pytest.mark.parametrize("command", ["plan", "bench"])
def test_whatever_its_function_raises_is_told_once_with_the_line(network, command, raised, told, tmp_path):
    name = network(f"{HEAD}\ndef network():\n    print('called')\n    raise {raised}\n")
    words = ("plan", name, *PLAN) if command == "plan" else ("bench", "bounds", "--networks", name)
    result = run(*words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("called") == 1
    assert result.stderr.endswith(f'ERROR:  network "mine:network" failed: {told} (mine.py:7)\n')


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--image-size 8", "--features 8", "--classes 8", "--freeze-backbone"])
def test_options_that_mean_nothing_to_it_are_refused(network, option):
    told = refusal("plan", network(ROWS), *option.split(), *PLAN)
    assert told.startswith(f'{option.split()[0]} means nothing to "mine:network"\n')


def test_a_name_that_is_nobodys_is_refused_with_the_nearest(network):
    assert 'Did you mean "resnet18"' in refusal("bench", "bounds", "--networks", "resnet1b")


def test_a_file_without_its_function_is_told_apart_from_an_unknown_name(network):
    network(ROWS)
    told = refusal("bench", "bounds", "--networks", "mine")
    assert told.startswith('network "mine" names no function of mine.py\nHINT:  Write mine:network, if')


def test_its_parameters_are_not_scaled(network, tmp_path):
    words = ("--parameters", "--policies", "tensile", "--out", str(tmp_path / "out"))
    told = refusal("bench", "capacity", "--networks", network(ROWS), *words)
    assert told.startswith("mine:network is not scaled by its parameters\n")


def test_rows_of_outputs_that_do_not_go_by_rows_are_refused(network):
    module = f"""{HEAD}
class Squared(nn.Linear):
    def forward(self, rows):
        return super().forward(rows).repeat(len(rows), 1)

def network():
    return Squared(3, 4), torch.zeros(3)
"""
    assert refusal("plan", network(module), *PLAN) == (
        'network "mine:network" returns a tensor of shape (64, 4) where 16 rows of outputs are due\n'
        "HINT:  It must return as many rows of outputs for each row of any batch.\n"
    )


def test_a_file_that_another_module_hides_is_told(network):
    assert refusal("plan", network(ROWS, "calendar"), *PLAN) == (
        'network "calendar:network": another module, of Python or installed, is called calendar\n'
        "HINT:  Give calendar.py another name.\n"
    )


def test_a_name_of_no_module_is_refused(network):
    told = refusal("plan", "nowhere:network", *PLAN)
    assert told.startswith('network "nowhere:network": there is no module nowhere\n')


def test_a_packages_network_is_benched_by_a_function_alone(network, monkeypatch):
    offered = {
        "theirs": EntryPoint(name="theirs", value="theirs:build", group=architectures.ENTRY_POINT_GROUP)
    }
    monkeypatch.setattr(architectures, "_offered", lambda: offered)
    told = refusal("bench", "bounds", "--networks", "theirs")
    assert told.startswith('architecture "theirs" is a package\'s, which does not say what rows it takes\n')
