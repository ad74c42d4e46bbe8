"""For how many threads is captured: as many as compute, and the same number for whatever is simulated."""

import pytest
import torch

from tensile_db.bench.machines import kernel_threads
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.commands.capturing import capture, captured_as_on


@pytest.fixture
def one_thread():
    """A process that has one core for its kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def graph(device, threads=None):
    """Capture a network whose 1x1 convolutions ATen makes with other kernels where one thread runs."""
    with captured_as_on(device, threads):
        return capture(
            "test_resnet",
            batch_size=8,
            image_size=32,
            features=None,
            classes=3,
            optimizer="sgd",
            precision="float32",
            memory_format="contiguous",
            freeze=False,
            device=device,
        ).graph


def test_a_simulated_devices_graph_is_the_same_wherever_it_is_captured(one_thread):
    simulated = graph("sim:a6000")
    assert torch.get_num_threads() == 1
    assert simulated == graph("cpu", 2) == graph("cpu", 5)
    alone = graph("cpu")
    # Of fewer rows kernels are others, so that the batch is not split into those.
    assert simulated != alone == graph("cpu", 1)
    assert [kernel_threads(name) for name in ("sim:p100", "cpu")] == [2, 1]


def test_captures_for_one_thread_are_kept_beside_those_for_several(tmp_path):
    gcn = workload("gcn")
    for threads in (1, 2, 3):
        Captures(folder=tmp_path, threads=threads).graph(gcn, 2, "sgd")
    assert len(list(tmp_path.iterdir())) == 2
