"""A network of one's own: what docs/planner.md shows is planned and benched, and what is wrong is said."""

import json
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tensile_db.bench.here import draw_batch
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import WORKLOADS, title_of, workload
from tensile_db.capture.networks import architectures
from tensile_db.cli import app
from tensile_db.commands.own_networks import use_network

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
def network(tmp_path, monkeypatch):
    """Write a module and return the name of its network; nothing of it stays behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known, modules = dict(WORKLOADS), set(sys.modules)

    def write(text, module="mine"):
        (tmp_path / f"{module}.py").write_text(text)
        return f"{module}:network"

    yield write
    WORKLOADS.clear()
    WORKLOADS.update(known)
    for name in set(sys.modules) - modules:
        if name in ("mine", "words"):
            del sys.modules[name]


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def planned(*arguments):
    result = run("plan", *arguments, *PLAN)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*arguments):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert "Traceback" not in result.output
    return result.stderr.partition("ERROR:  ")[2]


def inputs_nbytes(document):
    return [each["nbytes"] for each in document["graph"]["tensors"] if each["role"] == "input"]


def test_the_one_in_the_documentation_is_planned_with_a_target_for_each_token(network):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/planner.md").read_text(), re.DOTALL)
    (text,) = (block for block in blocks if "def network" in block)
    document = planned(network(text, "words"), "--budget", "50%", "--at-once")
    assert document["captured"]["architecture"] == "words:network"
    assert inputs_nbytes(document) == [8 * 256 * 8, 8 * 256 * 8]
    assert document["predicted"]["msr"] >= 0.5


def test_a_row_of_numbers_has_one_target(network):
    assert inputs_nbytes(planned(network(ROWS))) == [8 * 3 * 4, 8 * 8]


def test_what_it_prints_is_not_among_the_results(network):
    said = ROWS.replace("return", "print('built')\n    return")
    result = run("plan", network(f"print('imported')\n{said}"), *PLAN)
    assert json.loads(result.stdout)
    assert "imported" in result.stderr
    assert "built" in result.stderr


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(
            "self.scale = nn.Parameter(torch.tensor(torch.ones(3).sum().item()))", id="it reads a value"
        ),
        pytest.param("self.scale = torch.ones(3)", id="a constant"),
        pytest.param("self.scale = torch.tensor(2.0)", id="a single number"),
    ],
)
def test_one_that_must_be_built_with_values_is(network, first):
    module = f"""{HEAD}
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        {first}
        self.inner = nn.Linear(3, 4)

    def forward(self, rows):
        return self.inner(rows * self.scale)

def network():
    return Scaled(), torch.zeros(3)
"""
    assert inputs_nbytes(planned(network(module))) == [8 * 3 * 4, 8 * 8]


def test_one_beyond_this_machines_memory_is_built(network):
    name = network(f"{HEAD}\ndef network():\n    return nn.Linear(2**21, 2**20), torch.zeros(2**21)\n")
    use_network(name)
    weight, _bias = workload(name).module(4).parameters()
    assert weight.nbytes == 2**43


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


def test_a_network_that_is_not_known_here_is_called_by_its_name_in_tables():
    assert title_of("mine:network") == "mine:network"
    assert title_of("vgg16") == "VGG-16"


def test_it_is_really_trained_on_a_device_of_this_machine(network, tmp_path):
    result = run(
        *("bench", "single", "--networks", network(ROWS), "--policies", "tensile", "--budgets", "80"),
        *("--device", "cpu", "--no-bound", "--out", str(tmp_path / "out"), "--name", "made"),
    )
    assert result.exit_code == 0, result.output
    (made,) = json.loads((tmp_path / "out/made.json").read_text())["networks"]
    assert made["measured"]["tensile"]["peak_nbytes"] <= made["measured"]["tensile"]["guaranteed_peak_nbytes"]


def test_whole_numbers_that_no_embedding_takes_are_drawn(network):
    module = f"""{HEAD}
class Floats(nn.Linear):
    def forward(self, rows):
        return super().forward(rows.float())

def network():
    return Floats(3, 4), torch.zeros(3, dtype=torch.int64)
"""
    use_network(name := network(module))
    features, target = draw_batch(workload(name), 4, nn.Linear(1, 1))
    assert (features.shape, features.dtype, target.shape) == ((4, 3), torch.int64, (4,))


def test_captures_of_it_are_not_kept_while_those_of_architectures_are(network, tmp_path):
    captures = Captures(folder=tmp_path / "kept")
    for name in (network(ROWS), "mlp"):
        use_network(name)
        captures.graph(workload(name), 4, "sgd")
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.name.startswith("mlp-4-1-sgd")


OUTPUTS = (
    "It must return a row of outputs, one for each class, for each target: where tokens have a target each,"
    " (rows x tokens, classes), e.g. by flatten(0, 1)."
)
NOT_MADE = "docs/planner.md, A network of your own, has one that can be copied."


@pytest.mark.parametrize(
    ("body", "said", "hint"),
    [
        ("return nn.Linear(3, 4)", "gave a Linear, not a module and one of its rows", NOT_MADE),
        ("return None", "gave a NoneType, not a module and one of its rows", NOT_MADE),
        ("return nn.Linear, torch.zeros(3)", "gave a tuple, not a module and one of its rows", NOT_MADE),
        ("return nn.Linear(3, 4), (3,)", "gave a tuple, not a module and one of its rows", NOT_MADE),
        ("raise KeyError('width')", "failed: KeyError: 'width' (mine.py:6)", None),
        ("raise SystemExit(3)", "failed: SystemExit: 3 (mine.py:6)", None),
        (
            "return nn.Linear(3, 4), torch.zeros(3, dtype=torch.float64)",
            "takes rows of torch.float64 and shape (3,)",
            "A row is a float32 or int64 tensor with something in it.",
        ),
        (
            "return nn.Linear(3, 4), torch.zeros(0, 3)",
            "takes rows of torch.float32 and shape (0, 3)",
            "A row is a float32 or int64 tensor with something in it.",
        ),
        (
            "return nn.Linear(3, 4), torch.zeros(5, 3)",
            "returns a tensor of shape (2, 5, 4) for 2 rows of its input",
            OUTPUTS,
        ),
        (
            "return nn.Linear(3, 4), torch.zeros(5)",
            "cannot run on batches of 2 x 5: a and b must have same reduction dim, but got [2, 5] X [3, 4].",
            "Use another image_size or batch_size, or another architecture.",
        ),
    ],
)
def test_one_that_cannot_be_trained_is_refused_by_both_commands(network, body, said, hint, tmp_path):
    name = network(f"{HEAD}\ndef network():\n    {body}\n")
    told = refusal("bench", "bounds", "--networks", name, "--out", str(tmp_path))
    expected = f'"{name}" {said}\n' + ("" if hint is None else f"HINT:  {hint}\n")
    assert told.partition(" ")[2] == expected
    assert refusal("plan", name, *PLAN).partition(" ")[2] == expected


@pytest.mark.parametrize("option", ["--image-size", "--features", "--classes"])
def test_options_that_mean_nothing_to_it_are_refused(network, option):
    told = refusal("plan", network(ROWS), option, "8", *PLAN)
    assert told.startswith(f'{option} means nothing to "mine:network"\n')


def test_a_name_that_is_nobodys_is_refused_with_the_nearest(network):
    assert 'Did you mean "resnet18"' in refusal("bench", "bounds", "--networks", "resnet1b")


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
