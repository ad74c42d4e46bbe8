"""Machines to simulate that their users describe."""

import json
from dataclasses import asdict, replace

import pytest

from tensile_db.errors import InvalidRequest, TensileError, UnknownName
from tensile_db.machine_files import find_machine
from tensile_db.scheduler.machines import machine

A6000 = machine("sim:a6000")


@pytest.fixture
def described(tmp_path):
    """Find the machine of a description: a text, or what is to be JSON."""

    def find(description):
        file = tmp_path / "mine.json"
        file.write_text(description if isinstance(description, str) else json.dumps(description))
        return find_machine(f"sim:{file}")

    return find


def test_what_a_description_leaves_out_is_as_of_the_machine_that_it_is_like(described):
    found = described({"like": "a6000", "d2h_bytes_per_s": 12e9, "duplex": False, "op_overhead_ns": 0})
    assert found == replace(
        A6000, name="sim:mine", d2h_bytes_per_s=12_000_000_000, duplex=False, op_overhead_ns=0
    )


def test_a_whole_description_needs_no_other_machine(described):
    of_a_plan = {"name": "sim:a6000"}
    assert described(asdict(A6000) | of_a_plan) == replace(A6000, name="sim:mine")


@pytest.mark.parametrize(
    ("description", "complaint", "hint"),
    [
        ("{", "is no JSON: ", 'Write e.g. {"like": "a6000", '),
        ("[1]", "holds no JSON object", 'Write e.g. {"like": "a6000", '),
        ({"like": "a6000", "link": 1}, 'says "link" of a machine', "like, memory_nbytes, d2h_bytes_per_s"),
        ({"like": "p100", "duplex": 1}, "duplex is 1", "It is true or false."),
        ({"like": "p100", "h2d_bytes_per_s": 0}, "h2d_bytes_per_s is 0", "at least 1 and less than 2^62."),
        ({"like": "p100", "op_overhead_ns": -1}, "op_overhead_ns is -1", "from 0 to 10"),
        ({"like": "p100", "op_overhead_ns": 1e18}, "op_overhead_ns is 1e+18", "from 0 to 1000000000000."),
        ({"like": "p100", "flops_per_s": 1.5}, "flops_per_s is 1.5", "a whole number"),
        ({"like": "p100", "flops_per_s": True}, "flops_per_s is true", "a whole number"),
        ('{"like": "p100", "flops_per_s": NaN}', "flops_per_s is NaN", "a whole number"),
        ({"like": "p100", "flops_per_s": "fast"}, 'flops_per_s is "fast"', "a whole number"),
        ({"flops_per_s": 1}, "does not say memory_nbytes, d2h_bytes_per_s, ", "Say it, or say which"),
    ],
)
def test_a_description_that_is_none_is_refused(described, description, complaint, hint):
    with pytest.raises(InvalidRequest) as refusal:
        described(description)
    assert complaint in refusal.value.message
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("like", "told"), [("a7000", '"a7000"'), (None, "null"), (["a6000"], '["a6000"]'), (5, "5")]
)
def test_a_machine_that_another_is_like_is_one_that_is_known(described, like, told):
    with pytest.raises(InvalidRequest) as refusal:
        described({"like": like})
    assert refusal.value.message.endswith(f".json: like is {told}")
    assert "a6000, " in refusal.value.hint


def test_a_machine_that_another_is_like_may_be_named_as_devices_are(described):
    assert described({"like": "sim:p100"}) == described({"like": "p100"})


def test_a_description_that_is_not_there_is_told_of(tmp_path):
    with pytest.raises(TensileError, match=r"cannot read .*: No such file") as refusal:
        find_machine(f"sim:{tmp_path}/none.json")
    assert "titanrtx" in refusal.value.hint
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(TensileError, match=r"cannot read .*: Is a directory"):
        find_machine(f"sim:{tmp_path}/folder.json")


def test_a_name_is_one_of_those_that_are_known():
    assert find_machine("sim:a6000") is A6000
    with pytest.raises(UnknownName):
        find_machine("sim:a7000")
    with pytest.raises(UnknownName):
        find_machine("mine.json")
