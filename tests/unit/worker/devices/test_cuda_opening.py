"""How PyTorch is set where a GPU is opened, and what memory is left to libraries; without a GPU."""

import json
import logging
import os
import subprocess
import sys

import pytest
import torch

from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.devices.cuda import opening
from tensile_db.worker.latencies import hardware
from tensile_db.worker.latencies.hardware import hardware_name, name_for_workspaces

MIB, GIB = 2**20, 2**30
SET = """
import ctypes, json, os
from pathlib import Path
import torch
from tensile_db.worker.devices.cuda.opening import set_precision
set_precision()
names = ("CUBLAS_WORKSPACE_CONFIG", "TORCH_CUBLAS_WORKSPACE_CACHE")
library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
# What PyTorch built for CUDA makes of it.
asked = "_ZN2at4cuda33isCUDABlasWorkspaceCachingEnabledEv"
keeps = getattr(ctypes.CDLL(str(library)), asked, None) if library.exists() else None
if keeps is not None:
    keeps.restype = ctypes.c_bool
print(json.dumps([*(os.environ[name] for name in names), None if keeps is None else keeps()]))
"""


@pytest.fixture
def said(monkeypatch):
    """What the allocator was told; the environment says nothing."""
    told = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    # Not in PyTorch 2.11.
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: "", raising=False)
    for name in opening._ALLOCATOR_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return told


def works(*args, **kwargs):
    return None


def fails(*args, **kwargs):
    raise RuntimeError("CUDA driver error: operation not supported\nand more")


def test_segments_grow(said, monkeypatch):
    monkeypatch.setattr(torch, "zeros", works)
    opening.let_segments_grow("cuda:0")
    assert said == ["expandable_segments:True"]


def test_a_driver_that_maps_no_pages_is_left_as_it_was(said, monkeypatch, caplog):
    monkeypatch.setattr(torch, "zeros", fails)
    with caplog.at_level(logging.WARNING):
        opening.let_segments_grow("cuda:0")
    assert said == ["expandable_segments:True", "expandable_segments:False"]
    assert "operation not supported" in caplog.text
    assert "and more" not in caplog.text


@pytest.mark.parametrize("name", opening._ALLOCATOR_SETTINGS)
@pytest.mark.parametrize("value", ["True", "False"])
def test_what_the_environment_says_counts(said, monkeypatch, name, value):
    monkeypatch.setenv(name, f"max_split_size_mb:64,expandable_segments:{value}")
    opening.let_segments_grow("cuda:0")
    assert said == []


def test_a_pytorch_without_the_setting_is_left_alone(said, monkeypatch):
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings")
    opening.let_segments_grow("cuda:0")
    assert said == []


@pytest.mark.parametrize("make", [works, fails])
def test_what_else_was_said_is_said_once_more(said, monkeypatch, make):
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: "max_split_size_mb:64")
    monkeypatch.setattr(torch, "zeros", make)
    opening.let_segments_grow("cuda:0")
    assert all(each.startswith("max_split_size_mb:64,expandable_segments:") for each in said)
    assert said[-1].endswith(str(make is works))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "want"),
    [
        ({}, [":4096:8", "1", True]),
        pytest.param(
            {"TORCH_CUBLAS_WORKSPACE_CACHE": "0"}, [":4096:8", "0", False], marks=pytest.mark.thorough
        ),
    ],
)
def test_workspaces_of_products_are_fixed_and_kept_unless_the_environment_says_otherwise(said, want):
    environment = {name: value for name, value in os.environ.items() if "CUBLAS" not in name} | said
    found = subprocess.run(
        [sys.executable, "-c", SET], env=environment, check=True, capture_output=True, text=True
    )
    *values, keeps = json.loads(found.stdout)
    assert values == want[:2]
    # A PyTorch without the switch keeps them anyway.
    assert keeps in (want[2], None)


def test_the_reserve_has_two_workspaces_for_each_thread_and_no_more_than_a_tenth():
    jobs = WorkerConfig(dsn="").max_jobs
    assert opening.reserve_nbytes(80 * GIB, jobs=jobs) == 512 * MIB + (16 + 2) * 2 * 32 * MIB
    assert opening.reserve_nbytes(80 * GIB, jobs=1) == 512 * MIB + 3 * 2 * 32 * MIB
    assert opening.reserve_nbytes(8 * GIB, jobs=jobs) == 8 * GIB // 10


def test_workspaces_that_are_not_kept_are_other_figures(monkeypatch):
    gpu, named = torch.device("cuda", 0), "GPU, torch 2.15.0"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    assert name_for_workspaces(named, gpu) == named
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "0")
    assert name_for_workspaces(named, gpu) == "GPU, torch 2.15.0, cuBLAS's :4096:8 for each product"
    assert name_for_workspaces(named, torch.device("cpu")) == named


def test_a_gpus_latencies_are_kept_under_how_they_are_measured_and_its_workspaces_are_not(monkeypatch):
    monkeypatch.setattr(hardware, "model_name", lambda device: "GPU")
    monkeypatch.setattr(hardware, "library_versions", lambda: "CUDA 13")
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    plain = f"GPU, torch {torch.__version__}, CUDA 13"
    named = hardware_name(gpu, threads=1)
    assert named == f"{plain}, kernels alone"
    for kept in ("1", "0"):
        monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", kept)
        assert name_for_workspaces(named, gpu) == name_for_workspaces(plain, gpu)
    assert "kernels alone" not in hardware_name(cpu, threads=1)
