"""Searches against trials that nobody trains: what is begun when, what is stopped, when a search gives up."""

from dataclasses import replace
from math import inf, nan

import pytest

from tensile_db.catalog.searches import SearchRow, TrialRow
from tensile_db.errors import InvalidRequest, NonFiniteLoss, TensileError
from tensile_db.worker.searching.driving import best_of, drive
from tensile_db.worker.searching.study import longest, next_params, reason_to_prune
from tensile_db.worker.searching.trial import Trial

SPACE = {
    "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "dropout": {"low": 0.0, "high": 0.5, "step": 0.1},
    "batch_size": {"low": 8, "high": 30, "step": 8},
    "hidden_units": {"choices": [[4], [8, 8], [16]]},
}


def search(method="random", trials=8, max_parallel=2, metric="loss", space=SPACE):
    return SearchRow(
        job_id=1, space=space, method=method, trials=trials, max_parallel=max_parallel, metric=metric
    )


def trial(number, outcome="unfinished", value=None, reports=(), params=None, **error):
    return TrialRow(
        number=number,
        job=100 + number,
        params=params or {},
        outcome=outcome,
        value=value,
        reports=reports,
        error_sqlstate=error.get("sqlstate"),
        error_message=error.get("message"),
        error_hint=error.get("hint"),
        model_id=None,
        model_version=None,
        result=None,
    )


class FakeTrials:
    """Trials that end one at a time, the oldest first, as `end` says."""

    def __init__(self, end):
        self.rows = []
        self.told = []
        self.most_at_once = 0
        self.refusals = []
        self._end = end

    def read(self):
        return tuple(self.rows)

    def begin(self, number, params):
        assert number == len(self.rows)
        if self.refusals:
            return self.refusals.pop()
        self.rows.append(trial(number, params=params))
        self.most_at_once = max(self.most_at_once, len(self._unfinished()))
        return ""

    def tell(self, progress, wait_reason):
        self.told.append((progress, wait_reason))

    def pause(self):
        for row in self._unfinished()[:1]:
            self.rows[row.number] = self._end(row)

    def _unfinished(self):
        return [row for row in self.rows if row.outcome == "unfinished"]


def ending(value):
    def end(row):
        return replace(row, outcome="succeeded", value=value(row.params), reports=(value(row.params),))

    return end


def distance(params):
    return abs(params["learning_rate"] - 0.01) + params["dropout"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random", "tpe", "halving", "hyperband"])
def test_values_are_of_the_space_and_the_same_for_the_same_seed(method):
    found = []
    for seed in (7, 7, 8):
        trials = FakeTrials(ending(distance))
        drive(search(method, trials=14, max_parallel=1), trials, seed=seed)
        found.append([row.params for row in trials.rows])
    assert found[0] == found[1] != found[2]
    for params in found[0]:
        assert list(params) == list(SPACE)
        assert 1e-4 <= params["learning_rate"] <= 1e-1
        assert params["dropout"] in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
        assert params["batch_size"] in (8, 16, 24)
        assert params["hidden_units"] in ([4], [8, 8], [16])
    assert len({params["learning_rate"] for params in found[0]}) == 14


def test_a_search_that_goes_on_from_its_trials_asks_what_it_would_have_asked():
    asked, trials = search("tpe", trials=14, max_parallel=1), FakeTrials(ending(distance))
    drive(asked, trials, seed=7)
    for known in range(14):
        assert next_params(asked, trials.rows[:known], seed=7) == trials.rows[known].params


def test_tpe_comes_nearer_than_its_first_trials():
    trials = FakeTrials(ending(distance))
    drive(search("tpe", trials=40, max_parallel=1), trials, seed=1)
    values = [row.value for row in trials.rows]
    assert sum(values[-10:]) < 0.6 * sum(values[:10])


def test_a_grid_goes_through_its_points_in_order_and_no_further():
    space = {"epochs": {"choices": [3, 1]}, "dropout": {"low": 0, "high": 0.2, "step": 0.1}}
    grid, begun = search("grid", trials=6, space=space), []
    while (params := next_params(grid, begun, seed=0)) is not None:
        begun.append(trial(len(begun), params=params))
    assert [tuple(row.params.values()) for row in begun] == [
        (3, 0.0),
        (3, 0.1),
        (3, 0.2),
        (1, 0.0),
        (1, 0.1),
        (1, 0.2),
    ]
    assert longest(grid, 9) == 3


@pytest.mark.parametrize("max_parallel", [1, 3, 50])
def test_no_more_trials_are_under_way_than_may_be(max_parallel):
    trials = FakeTrials(ending(distance))
    found = drive(search(max_parallel=max_parallel), trials, seed=0)
    assert (len(trials.rows), trials.most_at_once) == (8, min(8, max_parallel))
    assert found.best.value == min(row.value for row in trials.rows)
    assert found.progress["succeeded"] == 8


def test_a_trial_that_must_wait_is_begun_later_with_the_same_values():
    plain, refused = FakeTrials(ending(distance)), FakeTrials(ending(distance))
    refused.refusals = ["no room", "no room"]
    for trials in (plain, refused):
        drive(search(max_parallel=1), trials, seed=0)
    assert [row.params for row in refused.rows] == [row.params for row in plain.rows]
    assert [reason for _, reason in refused.told[:3]] == ["no room", "no room", ""]


@pytest.mark.parametrize("accuracy", ["accuracy", "balanced_accuracy"])
def test_the_best_is_the_least_loss_the_most_accuracy_and_of_equals_the_first(accuracy):
    rows = [
        trial(0, "succeeded", 0.5),
        trial(1, "succeeded", 0.2),
        trial(2, "pruned", 0.1),
        trial(3, "failed"),
        trial(4, "succeeded", 0.2),
        trial(5, "succeeded", 0.5),
    ]
    assert best_of(search(), rows) == rows[1]
    assert best_of(search(metric=accuracy), rows) == rows[0]
    assert best_of(search(), rows[2:4]) is None


def failing(sqlstate, message="it broke", *, hint="Mend it.", but=()):
    def end(row):
        if row.number in but:
            return replace(row, outcome="succeeded", value=1.0, reports=(1.0,))
        return replace(row, outcome="failed", error_sqlstate=sqlstate, error_message=message, error_hint=hint)

    return end


def test_trials_that_fail_cost_nothing_but_themselves():
    trials = FakeTrials(failing("22003", but=(5,)))
    found = drive(search(), trials, seed=0)
    assert (found.best.number, found.progress["failed"], len(trials.rows)) == (5, 7, 8)


@pytest.mark.parametrize(
    ("sqlstate", "begun", "what"),
    [
        # Rows that cannot be used fail every trial.
        ("22004", 2, "the trials of the search cannot succeed; trial 0, job 100: it broke"),
        ("42P01", 2, "the trials of the search cannot succeed; trial 0, job 100: it broke"),
        # So, likely, does what fails all alike.
        ("22023", 4, "3 trials of the search failed alike; trial 2, job 102: it broke"),
        # Other values may do better.
        ("53200", 8, "no trial of the search succeeded; trial 7, job 107: it broke"),
        ("22003", 8, "no trial of the search succeeded; trial 7, job 107: it broke"),
    ],
)
def test_a_search_fails_with_its_trials_error_and_as_early_as_it_is_sure(sqlstate, begun, what):
    trials = FakeTrials(failing(sqlstate))
    with pytest.raises(TensileError) as failure:
        drive(search(), trials, seed=0)
    assert (failure.value.sqlstate, failure.value.message, failure.value.hint) == (sqlstate, what, "Mend it.")
    assert len(trials.rows) == begun


def pruned(rows, number, method="halving", metric="loss", epochs=27):
    return reason_to_prune(search(method, metric=metric), rows, job=100 + number, seed=0, epochs=epochs)


def test_one_in_three_goes_on_at_each_rung():
    rows = [trial(number, reports=(0.1 * number,)) for number in range(1, 7)]
    rows = [replace(row, number=place, job=100 + place) for place, row in enumerate(rows)]
    going_on = [row.number for row in rows if pruned(rows, row.number) is None]
    assert going_on == [0, 1]
    assert pruned(rows, 5) == (
        "loss 0.6 after epoch 1 is not among the best of the 6 trials that have come so far"
    )
    best_last = [row.number for row in rows if pruned(rows, row.number, metric="accuracy") is None]
    assert best_last == [4, 5]


def test_between_rungs_nobody_is_stopped_and_rungs_are_1_3_9_epochs():
    good = trial(0, "succeeded", 0.1, reports=(0.1,) * 27)
    lengths = []
    for epochs in range(1, 27):
        bad = trial(1, reports=(0.1,) * (epochs - 1) + (0.9,))
        if pruned([good, bad], 1) is not None:
            lengths.append(epochs)
    assert lengths == [1, 3, 9]


def test_the_first_to_come_is_never_stopped():
    assert pruned([trial(0, reports=(9.0,))], 0) is None
    assert pruned([trial(0, reports=(9.0,)), trial(1)], 0) is None


def test_hyperband_stops_some_and_the_same_ones_again():
    rows = [trial(number, reports=tuple([0.1 + number / 10] * 9)) for number in range(12)]
    stopped = [row.number for row in rows if pruned(rows, row.number, "hyperband", epochs=27)]
    assert stopped
    assert stopped == [row.number for row in rows if pruned(rows, row.number, "hyperband", epochs=27)]


@pytest.mark.parametrize(
    ("metrics", "message", "hint"),
    [
        ({"loss": 0.5}, "no row is held out, and so nothing tells which trial is best", "of each class two"),
        (
            {"validation_loss": 0.5, "validation_rmse": 1.0},
            'no metric "accuracy"',
            "Search for one of loss, rmse",
        ),
    ],
)
def test_a_trial_that_has_no_value_says_why(metrics, message, hint):
    of_trial = Trial(search=search(metric="accuracy"), seed=0, epochs=1)
    with pytest.raises(InvalidRequest, match=message) as refusal:
        of_trial.value(metrics)
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("metrics", "what"),
    [
        ({"validation_loss": nan, "validation_rmse": 1.0}, "the validation's loss became nan"),
        ({"validation_loss": 1.0, "validation_roc_auc": inf}, "the validation's roc_auc became inf"),
        ({"validation_loss": nan, "validation_roc_auc": inf}, "the validation's roc_auc became inf"),
    ],
)
def test_a_trial_that_diverges_says_so_also_where_its_metric_then_is_missing(metrics, what):
    of_trial = Trial(search=search(metric="roc_auc"), seed=0, epochs=1)
    with pytest.raises(NonFiniteLoss, match=what):
        of_trial.value(metrics)
