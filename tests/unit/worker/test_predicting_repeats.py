"""Which predictions have iterations enough to be taken down and replayed."""

import pytest

from tensile_db.worker.jobs.predicting import PredictingWork


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
def test_batches_count_between_two_writes(rows, batch_size, classes, all_classes, repeats):
    work = PredictingWork(
        step=None,
        rows=range(rows),
        batch_size=batch_size,
        classes=range(classes),
        scaling=None,
        averages=None,
        state={},
        plan_version=0,
        all_classes=all_classes,
    )
    assert work.repeats == repeats
