"""Recordings whose tensors come where it was worked out: as small as that says, and eager's bits."""

import dataclasses
import logging

import pytest
import torch

from tensile_db.scheduler.sharing import growing_range, recorded_memory
from tensile_db.scheduler.sharing.recorded_memory import recorded_memory as memory_of
from tensile_db.worker.devices.steering_trial import try_steering
from tests.examples import by_turns
from tests.late.range_tape import RangeTape
from tests.late.runs import Told, open_late
from tests.late.runtime import SCHEDULES, LateRuntime
from tests.late.step import late_step
from tests.steps.bitwise_runs import (
    capture_once,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import training_of

pytestmark = pytest.mark.slow

#: Addresses of a tape's range.
MOST_NBYTES = 1 << 26
MIB = 2**20


@pytest.fixture
def small_pages(monkeypatch):
    """Ranges for what small networks have: pages of 4 KiB, and 512 bytes are large already."""
    monkeypatch.setattr(growing_range, "SMALL_NBYTES", 512)
    monkeypatch.setattr(growing_range, "_SMALL_PAGE_NBYTES", 4096)
    monkeypatch.setattr(growing_range, "PAGE_NBYTES", 4096)
    monkeypatch.setattr(recorded_memory, "_LIBRARIES_NBYTES", 16384)


def open_ranges(schedule="lazy", *, libraries_nbytes=0, most_nbytes=MOST_NBYTES, **options):
    """Open a late device whose tapes' memory is of ranges that grow."""
    runtime, device = open_late(schedule, can_record=True, **options)
    runtime.make_tape = lambda: RangeTape(runtime, most_nbytes)
    runtime.libraries_nbytes = libraries_nbytes
    return runtime, device


def trained(network, optimizer, schedule="lazy", *, steers, share=0.5, **options):
    """Train within room for a steered recording; return it all, and what a recording should hold."""
    training = dataclasses.replace(training_of(network, optimizer, 8), iterations=5)
    runtime, device = open_ranges(schedule, steers=steers, **options)
    step, state = capture_once(training)
    program = tight_plan(step, device, share).program
    wanted = memory_of(step.graph, program, steers=True)
    assert wanted.steered is not None
    told = Told()
    got, results = train_here(
        device,
        late_step(step, runtime),
        state,
        program,
        training.batches(),
        budget_nbytes=program.resident_nbytes + wanted.nbytes,
        tell=told,
    )
    want, losses = train_eagerly(training)
    assert differing(got, want) == []
    assert losses_of(results) == losses
    assert (device.memory.used_nbytes, runtime.open_tapes) == (0, [])
    device.close()
    ((what, detail),) = told.said
    assert results[-1].replayed == (what == "replayed")
    return detail, wanted, memory_of(step.graph, program, steers=False)


@pytest.mark.parametrize(
    ("network", "optimizer", "schedule"),
    by_turns(
        [("resnet", "adam"), ("vgg with dropout", "momentum"), ("densenet", "adam"), ("vit", "adamw")],
        SCHEDULES,
    ),
)
def test_a_recording_holds_what_was_worked_out_and_computes_eagers_bits(
    one_thread, small_pages, network, optimizer, schedule
):
    detail, wanted, unsteered = trained(network, optimizer, schedule, steers=True)
    assert wanted.nbytes < unsteered.nbytes
    assert detail["astray"] == 0
    # What libraries would take is not taken before they do.
    assert wanted.steered.nbytes < detail["held_nbytes"] <= wanted.nbytes


def test_where_the_device_does_not_steer_there_is_no_room_for_it(one_thread, small_pages):
    detail, *_ = trained("resnet", "momentum", steers=False)
    assert detail.keys() == {"reason"}
    assert "bytes with its state" in detail["reason"]


def straying(monkeypatch, times, *, after, fails=False):
    """Have somebody else take what is open so many times, and keep it.

    after: so many allocations, plugs among them, of which there are hundreds; fails: then there is no memory.
    """
    allocate = RangeTape.allocate

    def allocate_for_others_too(self, nbytes, make):
        if len(self._chunks) > after and nbytes > 200_000:
            if len(self.kept) < times:
                self.kept.append(allocate(self, nbytes, make))
            elif fails:
                raise torch.OutOfMemoryError("none left")
        return allocate(self, nbytes, make)

    monkeypatch.setattr(RangeTape, "allocate", allocate_for_others_too)


def test_a_recording_that_holds_more_is_tried_once_more_left_to_the_allocator(
    one_thread, small_pages, monkeypatch
):
    straying(monkeypatch, 4, after=600)
    detail, wanted, _ = trained("resnet", "adam", steers=True)
    assert "steered" not in detail
    assert detail["held_nbytes"] <= wanted.nbytes


@pytest.mark.parametrize("fails", [False, True])
def test_a_recording_that_finds_no_room_either_way_says_what_came_elsewhere(
    one_thread, small_pages, monkeypatch, fails
):
    straying(monkeypatch, 4 if fails else 30, after=150, fails=fails)
    detail, *_ = trained("resnet", "adam", steers=True)
    assert ("none left" if fails else "bytes with its state") in detail["reason"]
    assert "; steered: " in detail["reason"]
    assert "times memory came elsewhere than it was steered" in detail["reason"]


def test_what_libraries_keep_comes_behind_the_range(one_thread, small_pages):
    detail, wanted, _ = trained("resnet", "adam", steers=True, libraries_nbytes=16384)
    assert detail["astray"] == 0
    assert detail["held_nbytes"] <= wanted.nbytes


@pytest.mark.parametrize("libraries_nbytes", [0, 32 * MIB])
def test_an_allocator_that_gives_the_smallest_hole_can_be_steered(libraries_nbytes):
    runtime, device = open_ranges(libraries_nbytes=libraries_nbytes, most_nbytes=300 * MIB)
    assert try_steering(runtime)
    assert runtime.open_tapes == []
    device.close()


def test_another_allocator_cannot_be_steered_and_it_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        assert not try_steering(LateRuntime())
    assert "left where the allocator puts them" in caplog.text
    assert "came elsewhere" in caplog.text


def test_what_keeps_more_than_is_thought_of_cannot_be_steered_and_it_is_said(caplog):
    runtime, device = open_ranges(libraries_nbytes=90 * MIB, most_nbytes=300 * MIB)
    with caplog.at_level(logging.WARNING):
        assert not try_steering(runtime)
    assert "0 came elsewhere" in caplog.text
    device.close()


def test_a_device_without_memory_for_the_trial_is_not_steered(caplog):
    runtime = LateRuntime()

    def fails():
        raise torch.OutOfMemoryError("none left")

    runtime.make_tape = fails
    with caplog.at_level(logging.WARNING):
        assert not try_steering(runtime)
    assert "none left" in caplog.text
