"""What is asked of NVML, and what is made of its answers; pynvml is played here."""

import os
import sys
from types import SimpleNamespace

import pytest

from tensile_db.worker.devices.cuda.nvml import Nvml

OWN = os.getpid()


def played(computing=(), drawing=None):
    """Return a pynvml of one GPU, on which these processes are: (pid, bytes) by what they do; None: refused.

    As of an old driver: it has no nvmlDeviceGetMPSComputeRunningProcesses.
    """

    def handle(uuid):
        if uuid != "GPU-1":
            raise RuntimeError("Not Found")
        return uuid

    def tell(processes):
        if processes is None:
            raise RuntimeError("Not Supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in processes]

    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=37, memory=5),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: tell(computing),
        nvmlDeviceGetGraphicsRunningProcesses=lambda handle: tell(drawing),
    )


@pytest.fixture
def play(monkeypatch):
    def play(**processes):
        monkeypatch.setitem(sys.modules, "pynvml", played(**processes))
        return Nvml("GPU-1")

    return play


def test_utilization_is_a_share(play):
    assert play().utilization() == 0.37


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        pytest.param({"computing": [(OWN, 700)]}, 0, id="alone"),
        pytest.param({"computing": [(OWN, 700), (1, 20), (2, 3)]}, 23, id="others compute"),
        pytest.param(
            {"computing": [(OWN, 700), (1, 20)], "drawing": [(1, 20), (2, 4)]}, 24, id="one does both"
        ),
        pytest.param({"computing": [(OWN + 1, 700), (1, 20)]}, None, id="known by another number"),
        pytest.param({"computing": []}, None, id="not known"),
        pytest.param({"computing": [(OWN, None)]}, None, id="own memory not told"),
        pytest.param({"computing": [(OWN, 700), (1, None)]}, None, id="another's memory not told"),
        pytest.param({"computing": None}, None, id="not supported"),
    ],
)
def test_what_others_hold(play, processes, expected):
    assert play(**processes).others_nbytes() == expected


def test_a_gpu_that_nvml_does_not_know_says_why(play):
    play()
    unknown = Nvml("GPU-2")
    assert unknown.missing == "RuntimeError: Not Found"
    assert (unknown.utilization(), unknown.driver_version(), unknown.others_nbytes()) == (0.0, None, None)
