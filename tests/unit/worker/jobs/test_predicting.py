"""Jobs that predict beside others: what they do within a turn, and what they do not."""

from types import SimpleNamespace

import pytest
import torch

from tensile_db.worker.jobs import predicting
from tensile_db.worker.jobs.predicting import PredictingWork


def work_of(*, rows=(), batch_size=1, classes=(), all_classes=False):
    """Return what a prediction is about, without what runs it."""
    return PredictingWork(
        step=None,
        rows=rows,
        batch_size=batch_size,
        classes=classes,
        scaling=None,
        averages=None,
        state={},
        plan_version=0,
        all_classes=all_classes,
    )


def test_predictions_are_written_when_the_turn_is_over(monkeypatch):
    """The database may be away for long, and the others of the lane must not wait for that."""
    turn = SimpleNamespace(held=False)
    turn.end = lambda: setattr(turn, "held", False)
    written_within_turn = []

    def outputs(*_):
        for row in range(3):
            turn.held = True
            yield torch.tensor([[0.0, 1.0]]), [str(row)], None

    records = SimpleNamespace(fence=None, must=lambda _: written_within_turn.append(turn.held))
    monkeypatch.setattr(predicting, "_outputs", outputs)
    monkeypatch.setattr(predicting, "_ROWS_A_WRITE", 2)
    work = work_of(classes=["no", "yes"])
    predicting.predict(SimpleNamespace(turn=turn, records=records), work, None, None)
    # What an earlier attempt left, twice some rows, the end.
    assert written_within_turn == [False] * 4


def test_probabilities_of_many_classes_are_written_a_few_rows_at_a_time(monkeypatch):
    written = []

    def outputs(*_):
        yield torch.zeros(7, 3), [str(row) for row in range(7)], None

    records = SimpleNamespace(fence=None, must=lambda write: None)
    monkeypatch.setattr(predicting, "_outputs", outputs)
    monkeypatch.setattr(predicting, "_NUMBERS_A_WRITE", 6)
    monkeypatch.setattr(predicting, "_write", lambda job, rows: written.append([row[0] for row in rows]))
    work = work_of(classes=["a", "b", "c"], all_classes=True)
    predicting.predict(SimpleNamespace(records=records), work, None, None)
    assert written == [[0, 1], [2, 3], [4, 5], [6]]


@pytest.mark.parametrize(
    ("rows", "batch_size", "classes", "all_classes", "repeats"),
    [
        (0, 64, 10, False, False),
        (63 * 64, 64, 10, False, False),
        (63 * 64 + 1, 64, 10, False, True),
        (10**6, 64, 1000, False, True),
        # Every 500 rows are written, for each has a thousand numbers.
        (10**6, 64, 1000, True, False),
        (10**6, 4, 1000, True, True),
    ],
)
def test_batches_between_two_writes_decide_whether_one_is_replayed(
    rows, batch_size, classes, all_classes, repeats
):
    work = work_of(rows=range(rows), batch_size=batch_size, classes=range(classes), all_classes=all_classes)
    assert work.repeats == repeats
