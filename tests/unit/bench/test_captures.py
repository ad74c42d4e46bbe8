"""Captured graphs are kept in a folder, and what is damaged there is made again."""

import pickle

import pytest

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 100, -1])
def test_a_damaged_file_is_made_again(tmp_path, monkeypatch, left):
    captures = Captures(folder=tmp_path)
    graph = captures.graph(workload("gcn"), 4, "sgd")
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    assert captures.graph(workload("gcn"), 4, "sgd") == graph
    assert pickle.loads(file.read_bytes()) == graph
    # What is whole is taken as it is.
    monkeypatch.delattr(Captures, "_capture")
    assert captures.graph(workload("gcn"), 4, "sgd") == graph
