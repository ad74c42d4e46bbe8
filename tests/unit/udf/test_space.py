"""Spaces to search: what is refused and what to change, a grid's points, and a trial's request."""

import pytest

from tensile_db.errors import InvalidRequest, UnknownName
from tensile_db.udf.request import OPTIMIZERS
from tensile_db.udf.space import check_space, grid_size, is_whole, last_of, points_of, trial_request

RANGE = {"low": 1e-4, "high": 1e-1, "log": True}

REFUSALS = [
    (None, "space is no JSON object with something to vary", "Write it as"),
    ([], "space is no JSON object with something to vary", "Write it as"),
    ({}, "space is no JSON object with something to vary", "Write it as"),
    (
        {"learnig_rate": RANGE},
        'unknown argument or option in space "learnig_rate"',
        'Did you mean "learning_rate" or "learning_rate_schedule"?',
    ),
    ({"": RANGE}, 'unknown argument or option in space ""', "Known: architecture, batch_size,"),
    ({"policy": {"choices": ["auto"]}}, '"policy" is the same for all trials', "Leave it out of space"),
    ({"validation": {"low": 0, "high": 1}}, '"validation" is the same for all', "Leave it out of space"),
    ({"task": {"choices": ["regression"]}}, '"task" is the same for all trials', "Leave it out of space"),
    ({"epochs": [1, 2]}, '"epochs" in space is no JSON object', 'Write "epochs": {"choices"'),
    ({"epochs": {"lo": 1, "high": 2}}, 'unknown key of "epochs" in space "lo"', 'Did you mean "low"'),
    ({"epochs": {"low": 1}}, '"epochs" in space has neither choices nor', 'Give "choices", or both'),
    ({"epochs": {"choices": [1], "low": 1}}, '"epochs" in space has both', 'Give either "choices" alone'),
    ({"epochs": {"choices": []}}, 'the choices of "epochs" are no list with', "Name at least one value"),
    ({"epochs": {"choices": 3}}, 'the choices of "epochs" are no list with', "Name at least one value"),
    ({"epochs": {"choices": [1, 1]}}, 'the choices of "epochs" name a value twice', "Name each value once"),
    ({"epochs": {"choices": [*range(1, 1002)]}}, '"epochs" has 1001 choices', "Name fewer"),
    ({"epochs": {"choices": [1, 1.5]}}, '"epochs" cannot be 1.5', "Its choices are each a whole number"),
    ({"epochs": {"choices": [True]}}, '"epochs" cannot be true', "Its choices are each a whole number"),
    ({"optimizer": {"choices": [1]}}, '"optimizer" cannot be 1', "Its choices are each a text"),
    ({"hidden_units": {"choices": [None]}}, '"hidden_units" cannot be null', "Its choices are each"),
    ({"optimizer": {"low": 1, "high": 2}}, '"optimizer" has no range', 'Name its values by "choices"'),
    ({"hidden_units": {"low": 1, "high": 2}}, '"hidden_units" has no range', 'Name its values by "choices"'),
    (
        {"epochs": {"low": 1.5, "high": 2}},
        '"low" of "epochs" cannot be 1.5',
        "It is a whole number from 1 to 2147483647.",
    ),
    (
        {"dropout": {"low": "0", "high": 1}},
        '"low" of "dropout" cannot be "0"',
        "It is a number from 0 to below 1.",
    ),
    (
        {"seed": {"low": 0, "high": 10**400}},
        '"high" of "seed" cannot be 1e+400',
        "It is a whole number from 0 to 9223372036854775807.",
    ),
    (
        {"batch_size": {"choices": [32, -(10**400)]}},
        '"batch_size" cannot be -1e+400',
        "Its choices are each a whole number from 1 to 2147483647.",
    ),
    (
        {"image_size": {"low": 32, "high": 10**308}},
        '"high" of "image_size" cannot be 1e+308',
        "It is a whole number from 1 to 8192.",
    ),
    (
        {"learning_rate": {"low": 1, "high": 10**308}},
        '"high" of "learning_rate" cannot be 1e+308',
        "It is a number above 0 to 9.22337e+18.",
    ),
    (
        {"epochs": {"choices": [[10**100, 2, 3]]}},
        f'"epochs" cannot be [1{"0" * 58}... (109 characters)',
        "Its choices are each a whole number",
    ),
    ({"dropout": {"low": 0.5, "high": 0.5}}, 'the low end of "dropout", 0.5, is not below', "Exchange them"),
    ({"dropout": {"low": 0.5, "high": 0.1}}, 'the low end of "dropout", 0.5, is not below', "Exchange them"),
    ({"dropout": {"low": None, "high": 1}}, 'the low end of "dropout", null, is not', "Exchange them"),
    (
        {"dropout": {"low": 0, "high": 0.5, "log": True}},
        'the low end of "dropout" must be above 0',
        'Raise "low", or leave "log" out.',
    ),
    ({"eps": RANGE | {"log": "yes"}}, '"log" of "eps" cannot be "yes"', "It is true or false."),
    ({"eps": RANGE | {"step": 0.1}}, '"eps" has a step on a logarithmic scale', 'Leave out "step"'),
    (
        {"epochs": {"low": 1, "high": 5, "step": 0}},
        'the step of "epochs" must be above 0 and at most 4, got 0',
        'Change "step"',
    ),
    (
        {"epochs": {"low": 1, "high": 5, "step": 9}},
        'the step of "epochs" must be above 0 and at most 4, got 9',
        'Change "step"',
    ),
]


@pytest.mark.parametrize(("space", "message", "hint"), REFUSALS)
def test_what_is_no_space_is_refused_with_what_to_change(space, message, hint):
    with pytest.raises(InvalidRequest) as refusal:
        check_space(space, has_others=False)
    assert refusal.value.sqlstate == "22023"
    assert refusal.value.message.startswith(message)
    assert refusal.value.hint.startswith(hint)


def test_a_range_of_a_packages_own_option_says_which_numbers_it_may_have():
    with pytest.raises(InvalidRequest) as refusal:
        check_space({"their_own": {"low": 1, "high": 10**400}}, has_others=True)
    assert refusal.value.message == '"high" of "their_own" cannot be 1e+400'
    assert refusal.value.hint == "It is a number from -9.22337e+18 to 9.22337e+18."


def test_options_that_only_a_package_knows_may_vary_where_there_is_one():
    space = {"their_own": {"low": 1, "high": 4}}
    with pytest.raises(UnknownName):
        check_space(space, has_others=False)
    check_space(space, has_others=True)
    assert is_whole("their_own", space["their_own"])
    assert not is_whole("their_own", {"low": 1, "high": 4.5})


@pytest.mark.parametrize(
    ("name", "spec", "points"),
    [
        ("epochs", {"low": 1, "high": 4}, [1, 2, 3, 4]),
        ("epochs", {"low": 1, "high": 6, "step": 2}, [1, 3, 5]),
        ("dropout", {"low": 0.1, "high": 0.3, "step": 0.1}, [0.1, 0.2, 0.3]),
        ("dropout", {"low": 0, "high": 0.5, "step": 0.2}, [0.0, 0.2, 0.4]),
        ("hidden_units", {"choices": [[4], [8, 8]]}, [[4], [8, 8]]),
    ],
)
def test_a_grid_tries_the_choices_and_the_steps(name, spec, points):
    assert points_of(name, spec) == points
    assert last_of(name, {"high": points[-1]} | spec) in (points[-1], spec.get("high"))


@pytest.mark.parametrize("spec", [RANGE, {"low": 0.1, "high": 0.2}])
def test_a_grid_over_a_continuous_range_is_refused(spec):
    with pytest.raises(InvalidRequest, match='a grid cannot try every "learning_rate"') as refusal:
        grid_size({"learning_rate": spec})
    assert refusal.value.hint.startswith('Name the values by "choices", add a "step"')


@pytest.mark.parametrize(
    "space",
    [
        {"epochs": {"low": 1, "high": 10**9}},
        {"epochs": {"low": 1, "high": 1000}, "batch_size": {"low": 1, "high": 1000}},
    ],
)
def test_a_grid_of_too_many_points_is_refused(space):
    with pytest.raises(InvalidRequest, match=r"the grid has [0-9]+ points, more than 10000"):
        grid_size(space)


BASE = {
    "architecture": "mlp",
    "epochs": 5,
    "batch_size": 32,
    "optimizer": "momentum",
    "learning_rate": None,
    "seed": 0,
    "options": {"momentum": 0.8, "dropout": 0.1},
}


KINDS = {"mlp": "mlp", "resnet50": "timm", "theirs": "plugin"}


def test_a_trial_has_its_own_values_and_the_searchs_for_the_rest():
    params = {"epochs": 7, "hidden_units": [4], "dropout": 0.2, "learning_rate": 0.3}
    assert trial_request(BASE, params, OPTIMIZERS, KINDS) == BASE | {
        "epochs": 7,
        "learning_rate": 0.3,
        "options": {"momentum": 0.8, "dropout": 0.2, "hidden_units": [4]},
    }


def test_a_trial_goes_without_what_its_optimizer_does_not_read():
    request = trial_request(BASE, {"optimizer": "adam", "betas": [0.5, 0.9]}, OPTIMIZERS, KINDS)
    assert request["options"] == {"dropout": 0.1, "betas": [0.5, 0.9]}
    # Its own default.
    assert request["learning_rate"] == 0.001


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("mlp", {"hidden_units": [4]}),
        ("resnet50", {"drop_path": 0.1}),
        # Only the package knows, and nobody where no worker has told of it.
        ("theirs", {"hidden_units": [4], "drop_path": 0.1}),
        ("gone", {"hidden_units": [4], "drop_path": 0.1}),
    ],
)
def test_a_trial_goes_without_what_its_architecture_does_not_read(architecture, options):
    base = BASE | {"options": {"hidden_units": [4]}}
    params = {"architecture": architecture, "drop_path": 0.1}
    assert trial_request(base, params, OPTIMIZERS, KINDS)["options"] == options
