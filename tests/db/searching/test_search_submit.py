"""What tensile_submit_search, and so tensile_search, makes of a call, and what it refuses."""

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.db import PUPPET_LOGIN

RATES = {"learning_rate": {"low": 1e-4, "high": 0.1, "log": True}}


def submit(site, space, *, role="alice", architecture="mlp", **arguments):
    """Call tensile_submit_search on the table `points`."""
    arguments = {"target": "y", "features": ["a", "b"]} | arguments
    named = "".join(f", {name} => %s" for name in arguments)
    statement = f"SELECT tensile_submit_search(%s, 'points', %s{named})"
    space = None if space is None else Jsonb(space)
    return statement, [architecture, space, *arguments.values()], role


def refusal(site, space, **arguments):
    statement, values, role = submit(site, space, **arguments)
    return site.refusal(statement, *values, role=role)


def search_of(site, space, **arguments):
    statement, values, role = submit(site, space, **arguments)
    search = site.value(statement, *values, role=role)
    (asked,) = site.execute("SELECT * FROM tensile.search_requests WHERE job_id = %s", search)
    return site.job(search) | asked


def test_a_search_is_a_job_and_what_it_asks_for(site):
    space = RATES | {"batch_size": {"choices": [2, 1]}}
    row = search_of(
        site, space, epochs=9, options=Jsonb({"hidden_units": [4]}), optimizer="adam", seed=5, model="m"
    )
    job = ("kind", "state", "owner", "architecture", "model", "epochs", "optimizer", "seed", "learning_rate")
    assert [row[name] for name in job] == ["search", "queued", "alice", "mlp", "m", 9, "adam", 5, None]
    assert (row["source_name"], row["target"], row["features"]) == ("public.points", "y", ["a", "b"])
    assert row["options"] == {"hidden_units": [4]}
    asked = ("space", "method", "trials", "max_parallel", "metric")
    assert [row[name] for name in asked] == [space, "random", 10, 2, "loss"]
    assert site.value("SELECT count(*) FROM tensile.searches", role="alice") == 1
    assert site.value("SELECT count(*) FROM tensile.searches", role="bob") == 0


@pytest.mark.parametrize(("asked", "trials"), [(None, 6), (4, 4), (100, 6)])
def test_a_grid_has_no_more_trials_than_points(site, asked, trials):
    space = {"epochs": {"low": 1, "high": 3}, "optimizer": {"choices": ["adam", "sgd"]}}
    assert search_of(site, space, method="grid", trials=asked)["trials"] == trials


def test_the_architecture_may_be_left_to_the_search(site):
    row = search_of(site, {"architecture": {"choices": ["theirs", "mlp"]}}, architecture=None)
    assert (row["architecture"], row["model"]) == (None, "theirs")


def test_an_option_of_some_optimizers_may_vary_where_one_of_them_may_be_chosen(site):
    space = {"optimizer": {"choices": ["adam", "sgd"]}, "momentum": {"low": 0.1, "high": 0.9}}
    assert search_of(site, space, options=Jsonb({"eps": 1e-8}))["options"] == {"eps": 1e-8}


def test_an_option_of_a_package_may_vary_where_its_architecture_may_be_chosen(site):
    space = {"architecture": {"choices": ["mlp", "theirs"]}, "width": {"choices": [4, 8]}}
    asked = search_of(site, space, architecture=None, options=Jsonb({"depth": 3, "hidden_units": [4]}))
    assert asked["options"] == {"depth": 3, "hidden_units": [4]}


REFUSALS = [
    (
        {"learning_rate": {"choices": [10**400]}},
        {},
        '"learning_rate" cannot be 1e+400',
        "Its choices are each",
    ),
    (
        {"learning_rate": {"low": 1, "high": 10**400}},
        {},
        '"high" of "learning_rate" cannot be 1e+400',
        "It is a number above 0",
    ),
    (
        {"seed": {"low": 1, "high": 10**400}},
        {},
        '"high" of "seed" cannot be 1e+400',
        "It is a whole number from 0 to 9223372036854775807.",
    ),
    (
        {"learning_rate": {"low": 0.1, "high": 1, "step": 1e-320}},
        {},
        'the step of "learning_rate" is too small for its range',
        'Leave out "step".',
    ),
    (RATES, {"options": Jsonb({"widht": 1})}, 'unknown option "widht"', "Known: "),
    (None, {}, "space is no JSON object with something to vary", "Write it as '"),
    ({"epochz": {"choices": [1]}}, {}, 'unknown argument or option in space "epochz"', "Did you mean"),
    (RATES, {"method": "gird"}, 'unknown method "gird"', 'Did you mean "grid"?'),
    (RATES, {"method": "grid"}, 'a grid cannot try every "learning_rate"', "Name the values by"),
    (RATES, {"metric": "los"}, 'unknown metric "los"', 'Did you mean "loss"?'),
    (RATES, {"trials": 0}, "trials must be from 1 to 10000, got 0", "The default is 10."),
    (RATES, {"max_parallel": -1}, "max_parallel must be from 1 to 1000, got -1", "The default is 2."),
    (RATES, {"validation": 0}, "a search compares its trials on rows held out", "validation => 0.1"),
    (RATES, {"epochs": 0}, "epochs must be at least 1, got 0", "The default is 5"),
    (RATES, {"architecture": None}, "the architecture is NULL", "Name one, e.g."),
    (RATES, {"options": Jsonb([1])}, "options is no JSON object", "Write it as"),
    (
        RATES,
        {"options": Jsonb({"eps": 1})},
        'no optimizer of this search has an option "eps"',
        "Leave it out",
    ),
    (
        {"architecture": {"choices": ["mlp", "vgg61"]}},
        {"architecture": None},
        'unknown architecture "vgg61"',
        'Did you mean "vgg16"?',
    ),
    ({"architecture": {"choices": 5}}, {}, 'the choices of "architecture" are no list', "Name at least"),
    ({"optimizer": {"choices": ["adm"]}}, {}, 'unknown optimizer "adm"', 'Did you mean "adam"'),
    ({"batch_size": {"choices": [8, 0]}}, {}, "batch_size must be at least 1, got 0", "The default is 32"),
    ({"dropout": {"low": 0, "high": 1}}, {}, 'option "dropout" cannot be 1', "It is a number from 0"),
    ({"learning_rate": {"low": 0, "high": 1}}, {}, "learning_rate must be above 0", "Leave it out"),
    (
        {"precision": {"choices": ["float32", "half"]}},
        {},
        'option "precision" cannot be "half"',
        'It is "float32", "tf32", "bfloat16" or "float16"',
    ),
    ({"precision": {"low": 8, "high": 32}}, {}, '"precision" has no range', "Name its values by"),
    ({"hidden_units": {"choices": [[0]]}}, {}, 'option "hidden_units" cannot be [0]', "It is a list"),
    (
        {"betas": {"choices": [[0.9, 0.99]]}},
        {},
        'no optimizer of this search has an option "betas"',
        "Leave it out, or let the optimizer be one that has: adam, adamw.",
    ),
    (
        {"architecture": {"choices": ["resnet50", "vgg16"]}},
        {"architecture": None, "features": None, "options": Jsonb({"hidden_units": [4]})},
        'no architecture of this search has an option "hidden_units"',
        "Leave it out.",
    ),
    (
        {"architecture": {"choices": ["theirs", "mlp"]}},
        {},
        '"architecture" is given as an argument, and varies in space',
        "Leave it out of space, or give NULL for it.",
    ),
    (
        {"epochs": {"low": 1, "high": 3}},
        {"epochs": 2},
        '"epochs" is given as an argument, and varies in space',
        "Leave it out of space, or do not give it",
    ),
    (
        {"dropout": {"choices": [0.1, 0.2]}},
        {"options": Jsonb({"dropout": 0.3})},
        '"dropout" is one of the options, and varies in space',
        "Leave it out of one of them.",
    ),
    (
        {"epochs": {"choices": [5, 50]}, "warmup_epochs": {"low": 0, "high": 10}},
        {},
        "a trial might warm up for 10 epochs, and have 5",
        'Let no "warmup_epochs" be more than the fewest epochs.',
    ),
    (
        {"epochs": {"choices": [30, 2]}},
        {"options": Jsonb({"warmup_epochs": 2.5})},
        "a trial might warm up for 2.5 epochs, and have 2",
        'Let no "warmup_epochs" be more than the fewest epochs.',
    ),
    (
        {"warmup_epochs": {"choices": [0, 6]}},
        {},
        "a trial might warm up for 6 epochs, and have 5",
        'Let no "warmup_epochs" be more than the fewest epochs.',
    ),
    (
        RATES,
        {"metric": "mse", "target": "note"},
        'trials that predict classes have no metric "mse"',
        "Name one of loss, accuracy, balanced_accuracy, macro_f1, precision, recall, f1, roc_auc.",
    ),
    (
        RATES,
        {"metric": "accuracy"},
        'trials that predict a number have no metric "accuracy"',
        "Name one of loss, mse, rmse, mae, r2.",
    ),
    (
        RATES,
        {"metric": "accuracy", "target": "id", "options": Jsonb({"task": "regression"})},
        'trials that predict a number have no metric "accuracy"',
        "Name one of loss, mse, rmse, mae, r2.",
    ),
    (
        {"image_size": {"choices": [8, 16]}},
        {},
        'the option "image_size" is for images',
        "Leave it out, or name a column",
    ),
]


@pytest.mark.parametrize(("space", "arguments", "message", "hint"), REFUSALS)
def test_what_cannot_be_searched_is_refused(site, space, arguments, message, hint):
    sqlstate, said, advised = refusal(site, space, **arguments)
    assert sqlstate == "22023"
    assert said.startswith(message)
    assert advised.startswith(hint)
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0


def test_a_search_of_what_may_not_be_read_is_refused(site):
    site.execute("REVOKE SELECT ON points FROM alice")
    assert refusal(site, RATES)[0] == "42501"


def test_after_a_rollback_there_never_was_a_search(site):
    statement, values, _ = submit(site, RATES)
    with site.connect("alice", autocommit=False) as connection:
        connection.execute(statement, values)
        connection.rollback()
    assert site.value("SELECT count(*) FROM tensile.search_requests") == 0


def test_trials_have_the_searchs_priority_and_no_higher_one(site):
    assert refusal(site, RATES, priority=1)[0] == "42501"
    statement, values, role = submit(site, RATES, priority=3, role="carol")
    search = site.value(statement, *values, role=role)
    trial = (
        "INSERT INTO tensile.jobs (submitted_by, owner, source_oid, source_name, search_id, priority)"
        " SELECT submitted_by, owner, source_oid, source_name, id, %s FROM tensile.jobs WHERE id = %s"
    )
    site.execute(trial, 3, search, role=PUPPET_LOGIN)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        site.execute(trial, 4, search, role=PUPPET_LOGIN)
    site.execute(submit(site, RATES)[0], *submit(site, RATES)[1], role="alice")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        site.execute(trial, 1, search + 3, role=PUPPET_LOGIN)


def test_a_quota_counts_searches_among_searches_and_not_against_their_trials(site):
    site.execute("SELECT tensile_set_quota('alice', max_concurrent_jobs => 1)", role="carol")
    statement, values, _ = submit(site, RATES)
    site.value(statement, *values, role="alice")
    assert site.refusal(statement, *values)[0] == "53400"
    train = "SELECT tensile_submit('mlp', 'points', target => 'y', features => '{a,b}')"
    site.value(train, role="alice")
    assert site.refusal(train)[0] == "53400"
