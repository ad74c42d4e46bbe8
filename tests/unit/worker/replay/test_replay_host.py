"""The host's buffers of a recording: worked out ahead, and taken before anything is taken down."""

import dataclasses

import pytest

from tensile_db.scheduler.lowering import lower
from tensile_db.worker.execution.recording_swapper import RecordingSwapper
from tests.late.runs import AMPLE, open_late
from tests.late.step import late_step
from tests.steps.bitwise_runs import capture_once, tight_plan, train_here, with_recomputation
from tests.steps.small_networks import training_of

pytestmark = pytest.mark.slow


@pytest.fixture
def foreseen(monkeypatch):
    """What recordings would take ahead; here they take nothing then, and each buffer when it is needed."""
    sizes = []
    monkeypatch.setattr(RecordingSwapper, "reserve_host", lambda self, asked: sizes.append(asked))
    return sizes


@pytest.fixture
def needed(monkeypatch):
    """What recordings had taken when they were closed."""
    sizes = []

    def close(self):
        sizes.append(sorted(self.host_sizes))
        really(self)

    really = RecordingSwapper.close
    monkeypatch.setattr(RecordingSwapper, "close", close)
    return sizes


def replay(network, optimizer, share, *, recomputed=0):
    """Train a network within a share of eager's peak, replayed from the third iteration on."""
    training = dataclasses.replace(training_of(network, optimizer, 4), iterations=4)
    runtime, device = open_late("lazy", can_record=True)
    step, state = capture_once(training)
    plan = with_recomputation(step.graph, tight_plan(step, device, share).plan, tensors=recomputed)
    program = lower(step.graph, plan)
    _, results = train_here(
        device, late_step(step, runtime), state, program, training.batches(), budget_nbytes=AMPLE
    )
    assert results[-1].replayed
    assert results[-1].swapped_out_nbytes > 0
    device.close()


@pytest.mark.parametrize(
    ("network", "optimizer", "share", "recomputed"),
    [
        ("vgg with dropout", "momentum", 0.7, 0),
        ("vgg with dropout", "momentum", 0.8, 3),
        ("mlp", "adam", 0.6, 0),
        ("resnet", "momentum", 0.5, 0),
        pytest.param("vit", "adamw", 0.5, 0, marks=pytest.mark.thorough),
    ],
)
def test_what_is_taken_ahead_is_what_would_be_taken_on_the_way(
    one_thread, foreseen, needed, network, optimizer, share, recomputed
):
    replay(network, optimizer, share, recomputed=recomputed)
    assert foreseen[-1]
    assert needed == foreseen


def test_nothing_is_taken_while_a_passage_is_taken_down(one_thread, needed, monkeypatch):
    taken = []

    def make_host(self, nbytes):
        taken.append((nbytes, self._in_passage))
        return really(self, nbytes)

    really = RecordingSwapper._make_host
    monkeypatch.setattr(RecordingSwapper, "_make_host", make_host)
    replay("resnet", "momentum", 0.5)
    assert [in_passage for _, in_passage in taken] == [False] * len(taken)
    assert [sorted(nbytes for nbytes, _ in taken)] == needed
