"""The options `start_from` and `start_from_version`: what a backend makes of them, and what it refuses."""

import psycopg
import pytest
from psycopg.types.json import Jsonb

VECTORS = ["a", "b"]


def add_model(site, *, owner="bob", name="pairs", version=1, **values):
    """Insert a model of the table `points` as a worker would; return its id."""
    row = {
        "architecture": "mlp",
        "task": "regression",
        "target": "y",
        "columns": VECTORS,
        "options": {"hidden_units": [4], "dropout": 0.25, "eps": 1e-7},
    } | values
    return site.value(
        "INSERT INTO tensile.models (name, version, owned_by, owner, architecture, task, classes, features,"
        " target, parameter_nbytes) SELECT %s, %s, oid, rolname, %s, %s, NULL, %s, %s, 100"
        " FROM pg_roles WHERE rolname = %s RETURNING id",
        name,
        version,
        row["architecture"],
        row["task"],
        Jsonb({"columns": row["columns"], "options": row["options"]}),
        row["target"],
        owner,
    )


def call(options, *, architecture="mlp", source="points", **arguments):
    named = "".join(f", {name} => %s" for name in arguments)
    statement = f"SELECT tensile_submit(%s, %s, options => %s{named})"
    return statement, architecture, source, Jsonb(options), *arguments.values()


def submitted(site, options, role="bob", **arguments):
    return site.job(site.value(*call(options, **arguments), role=role))


def test_a_training_takes_over_what_the_weights_stand_for(site):
    add_model(site)
    second = add_model(site, version=2)
    row = submitted(site, {"start_from": "pairs"})
    assert (row["initial_model_id"], row["model_id"]) == (second, None)
    # A new version of the model, of the same columns, unless it is said otherwise.
    assert (row["model"], row["features"], row["target"]) == ("pairs", VECTORS, "y")
    assert row["options"] == {
        "start_from": "pairs",
        "start_from_version": 2,
        "task": "regression",
        "hidden_units": [4],
        "dropout": 0.25,
    }


def test_options_that_are_given_override_the_models(site):
    first = add_model(site)
    add_model(site, version=2)
    options = {"start_from": "pairs", "start_from_version": 1, "dropout": 0.5, "hidden_units": [4]}
    row = submitted(site, options, model="other", target="y", features=VECTORS, architecture=None)
    assert (row["initial_model_id"], row["model"], row["architecture"]) == (first, "other", "mlp")
    assert row["options"]["dropout"] == 0.5


def test_the_options_of_a_package_come_along(site):
    add_model(site, architecture="theirs", options={"width": 3, "momentum": 0.5, "start_from": "older"})
    row = submitted(site, {"start_from": "pairs"}, architecture="theirs")
    assert row["options"] == {
        "width": 3,
        "start_from": "pairs",
        "start_from_version": 1,
        "task": "regression",
    }


def test_trials_of_a_search_start_from_it_too(site):
    model = add_model(site)
    search = site.value(
        "SELECT tensile_submit_search('mlp', 'points', %s, options => %s)",
        Jsonb({"dropout": {"low": 0, "high": 0.5}}),
        Jsonb({"start_from": "pairs"}),
        role="bob",
    )
    row = site.job(search)
    assert (row["initial_model_id"], row["model"], row["features"]) == (model, "pairs", VECTORS)
    # What varies is not taken over.
    assert row["options"].keys() == {"start_from", "start_from_version", "task", "hidden_units"}


@pytest.mark.parametrize(
    ("space", "name"),
    [
        ({"architecture": {"choices": ["mlp", "theirs"]}}, "architecture"),
        ({"hidden_units": {"choices": [[4], [8]]}}, "hidden_units"),
    ],
)
def test_what_the_weights_decide_does_not_vary(site, space, name):
    add_model(site)
    sqlstate, message, _ = site.refusal(
        "SELECT tensile_submit_search(%s, 'points', %s, options => %s)",
        None if name == "architecture" else "mlp",
        Jsonb(space),
        Jsonb({"start_from": "pairs"}),
        role="bob",
    )
    assert sqlstate == "22023"
    assert f'"{name}" is that of the model "pairs"' in message


@pytest.mark.parametrize(
    ("options", "arguments", "sqlstate", "message", "hint"),
    [
        ({"start_from": "pear"}, {}, "42704", 'no model "pear"', 'Did you mean "pairs"?'),
        ({"start_from": "pairs", "start_from_version": 7}, {}, "42704", "no version 7", "It has: 1."),
        ({"start_from_version": 1}, {}, "22023", "no model is named", "start_from"),
        ({"start_from": ""}, {}, "22023", 'option "start_from" cannot be ""', "It is a text."),
        ({"start_from": 7}, {}, "22023", 'option "start_from" cannot be 7', "It is a text."),
        (
            {"start_from": "pairs", "start_from_version": 0},
            {},
            "22023",
            'option "start_from_version" cannot be 0',
            "It is a whole number from 1",
        ),
        (
            {"start_from": "pairs"},
            {"architecture": "vgg16"},
            "22023",
            'has the architecture "mlp", and a network "vgg16" cannot start from its weights',
            "Give 'mlp' as the architecture",
        ),
        (
            {"start_from": "pairs", "hidden_units": [5]},
            {},
            "22023",
            'the option "hidden_units" is [4] in the model "pairs"',
            "Leave it out.",
        ),
        (
            {"start_from": "pairs", "task": "classification"},
            {},
            "22023",
            'predicts a number, and the option "task" says "classification"',
            "Leave it out.",
        ),
        (
            {"start_from": "pairs"},
            {"features": ["b", "a"]},
            "22023",
            'features are b, a, but the model "pairs" that the training starts from learned from a, b',
            "Leave features out",
        ),
        (
            {"start_from": "pairs"},
            {"source": "images_table"},
            "42703",
            'no column "a" to be the feature',
            'The model "pairs" needs a, b; public.images_table has',
        ),
    ],
)
def test_what_contradicts_the_model_is_refused(site, options, arguments, sqlstate, message, hint):
    add_model(site)
    site.execute("GRANT SELECT ON images_table TO bob")
    found = site.refusal(*call(options, **arguments), role="bob")
    assert found[0] == sqlstate
    assert message in found[1]
    assert hint in found[2]
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0


@pytest.mark.parametrize(
    ("task", "target", "message", "hint"),
    [
        ("classification", "a", 'predicts classes, and the target "a" is of type real', '"a"::bigint'),
        (
            "regression",
            "label",
            'predicts a number, and the target "label" is of type text',
            '"label"::float8',
        ),
    ],
)
def test_a_target_is_what_the_model_predicts(site, task, target, message, hint):
    add_model(site, task=task, columns=["b"])
    site.execute("ALTER TABLE points ADD COLUMN label text")
    found = site.refusal(*call({"start_from": "pairs"}, target=target), role="bob")
    assert found[0] == "22023"
    assert message in found[1]
    assert hint in found[2]


def test_a_model_that_a_search_may_still_replace_is_none_to_start_from_unless_it_is_named(site):
    first = add_model(site)
    second = add_model(site, version=2)
    search = site.value(
        "SELECT tensile_submit_search('mlp', 'points', %s, target => 'y')",
        Jsonb({"seed": {"choices": [1, 2]}}),
        role="bob",
    )
    trial = submitted(site, {}, target="y")["id"]
    site.execute("UPDATE tensile.jobs SET search_id = %s WHERE id = %s", search, trial)
    site.execute("UPDATE tensile.models SET job_id = %s WHERE id = %s", trial, second)
    assert submitted(site, {"start_from": "pairs"})["initial_model_id"] == first
    named = submitted(site, {"start_from": "pairs", "start_from_version": 2})
    assert named["initial_model_id"] == second
    site.execute("UPDATE tensile.jobs SET state = 'cancelled', finished_at = now() WHERE id = %s", search)
    assert submitted(site, {"start_from": "pairs"})["initial_model_id"] == second


def test_a_model_of_somebody_else_is_none_to_start_from(site):
    model = add_model(site, owner="alice")
    found = site.refusal(*call({"start_from": "pairs"}), role="bob")
    assert found[:2] == ("42704", 'no model "pairs"')
    # Nor by a row that was not made by the functions.
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        site.execute(
            "INSERT INTO tensile.jobs (kind, submitted_by, owner, architecture, source_oid, source_name,"
            " initial_model_id) SELECT 'train', oid, rolname, 'mlp', 'points'::regclass, 'points', %s"
            " FROM pg_roles WHERE rolname = 'bob'",
            model,
            role="bob",
        )


def test_hostile_names_are_names(site):
    name = """a"b'c\\d%s{x}"""
    model = add_model(site, name=name)
    row = submitted(site, {"start_from": name})
    assert (row["initial_model_id"], row["model"]) == (model, name)
