"""Jobs that predict beside others: what they do within a turn, and what they do not."""

from types import SimpleNamespace

import torch

from tensile_db.worker.jobs import predicting


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
    work = SimpleNamespace(classes=["no", "yes"], scaling=None, all_classes=False)
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
    work = SimpleNamespace(classes=["a", "b", "c"], scaling=None, all_classes=True)
    predicting.predict(SimpleNamespace(records=records), work, None, None)
    assert written == [[0, 1], [2, 3], [4, 5], [6]]
