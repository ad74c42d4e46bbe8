"""What a NOTICE says of a search under way, and of a job that rests."""

import pytest

from tensile_db.udf.wait import describe

STATUS = {
    "id": 12,
    "kind": "search",
    "state": "running",
    "phase": "searching",
    "wait_reason": None,
    "result": {
        "trials": 8,
        "begun": 6,
        "unfinished": 2,
        "succeeded": 2,
        "pruned": 2,
        "failed": 0,
        "metric": "loss",
        "best": {
            "trial": 3,
            "job_id": 16,
            "params": {"learning_rate": 0.0312345, "hidden_units": [8, 4]},
            "value": 0.2512345,
        },
    },
}


def test_a_search_tells_its_trials_and_the_best_so_far():
    assert describe(STATUS) == (
        "search 12: 4 of 8 trials ended, 2 pruned, 2 under way,"
        " best so far loss 0.2512 of trial 3: learning_rate 0.03123, hidden_units [8, 4]"
    )


def test_a_search_that_waits_says_for_what():
    result = STATUS["result"] | {"begun": 1, "unfinished": 1, "pruned": 0, "best": None}
    assert describe(STATUS | {"result": result, "wait_reason": "no room"}) == (
        "search 12: 0 of 8 trials ended, 1 under way, waits: no room"
    )


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (None, "job 46: paused, tensile_resume(46) lets it go on"),
        (
            "its role has used 3.0 of 2.5 seconds of device time",
            (
                "job 46: paused, its role has used 3.0 of 2.5 seconds of device time,"
                " tensile_resume(46) lets it go on once a member of tensile_admin allows more"
            ),
        ),
    ],
)
def test_a_job_that_rests_says_how_it_goes_on(reason, told):
    status = {"id": 46, "kind": "train", "state": "paused", "phase": "paused", "wait_reason": None}
    assert describe(status | {"pause_reason": reason}) == told
