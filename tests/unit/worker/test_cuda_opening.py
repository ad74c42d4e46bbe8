"""How PyTorch's allocator is set where a GPU is opened; on stand-ins for PyTorch's own calls."""

import logging

import pytest
import torch

from tensile_db.worker.devices.cuda import opening


@pytest.fixture
def said(monkeypatch):
    """What the allocator was told; the environment says nothing."""
    told = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: "")
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
