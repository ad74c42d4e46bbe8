"""For how many threads steps are captured: as many as compute, and for simulated devices always the same."""

import pytest
import timm
import torch

from tensile_db.bench.machines import kernel_threads
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import Workload

pytestmark = pytest.mark.slow

#: Where one thread runs, a part of few rows of its 1x1 convolutions would have other kernels than the whole.
SMALL = Workload(
    name="small",
    title="small",
    row_shape=(3, 32, 32),
    build=lambda *_: timm.create_model("test_resnet"),
)


def graph(folder, device):
    captures = Captures(folder=folder, threads=kernel_threads(device))
    return captures.graph(SMALL, 8, "sgd")


def test_a_simulated_devices_graph_is_the_same_wherever_it_is_captured(one_thread, tmp_path):
    simulated, alone = (graph(tmp_path / name, name) for name in ("sim:a6000", "cpu"))
    assert torch.get_num_threads() == 1
    torch.set_num_threads(5)
    assert graph(tmp_path / "several", "cpu") == simulated != alone


def test_captures_for_one_thread_are_kept_beside_those_for_several(one_thread, tmp_path):
    alone = graph(tmp_path, "cpu")
    torch.set_num_threads(2)
    assert alone != graph(tmp_path, "cpu") == graph(tmp_path, "sim:a6000")
    assert len(list(tmp_path.iterdir())) == 2
