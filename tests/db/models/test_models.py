"""What is done with models: predict, evaluate, list, drop; and tensile_explain, which makes none."""

from functools import partial
from types import SimpleNamespace

import psycopg
import pytest

from tensile_db.catalog.engine import in_transaction, make_engine
from tensile_db.errors import UndefinedModel
from tests.fixtures.db import Puppet
from tests.jobs.inserted_rows import add_model

PREDICT = "SELECT * FROM tensile_predict('digits', 'images_table')"


def predict(puppet, job):
    """Write predictions as a worker does."""
    puppet.execute(
        "INSERT INTO tensile.predictions (job_id, ordinal, row_key, prediction, probability)"
        " VALUES (%s, 1, '12', 'odd', 0.5), (%s, 0, '11', 'even', 0.75)",
        job["id"],
        job["id"],
    )
    puppet.succeed(job)


def test_predictions_come_in_the_sources_order_and_are_not_kept(site):
    add_model(site)
    with Puppet(site, predict):
        rows = site.execute(PREDICT, role="alice")
    assert rows == [
        {"row_key": "11", "prediction": "even", "probability": 0.75},
        {"row_key": "12", "prediction": "odd", "probability": 0.5},
    ]
    assert site.value("SELECT count(*) FROM tensile.predictions") == 0


def test_the_newest_version_predicts_where_none_is_given_or_pinned(site):
    first, second = add_model(site, version=1), add_model(site, version=2)
    asked = []

    def remember(puppet, job):
        asked.append((job["kind"], job["model_id"], job["model_version"], job["features"], job["target"]))
        puppet.succeed(job)

    with Puppet(site, remember):
        site.execute(PREDICT, role="alice")
        site.execute("SELECT * FROM tensile_predict('digits', 'images_table', 1)", role="alice")
    assert asked == [("predict", second, 2, ["image"], None), ("predict", first, 1, ["image"], None)]


def test_evaluate_returns_a_row_for_each_metric(site):
    add_model(site)
    asked = []

    def measure(puppet, job):
        asked.append((job["kind"], job["target"]))
        puppet.succeed(job, result={"metrics": {"loss": 0.5, "accuracy": 0.875}})

    with Puppet(site, measure):
        rows = site.execute(
            "SELECT * FROM tensile_evaluate('digits', 'images_table') ORDER BY metric", role="alice"
        )
    assert rows == [{"metric": "accuracy", "value": 0.875}, {"metric": "loss", "value": 0.5}]
    assert asked == [("evaluate", "label")]


def test_a_prediction_needs_the_columns_that_the_model_learned_from(site):
    add_model(site, columns="picture")
    needed, there = "picture", "id, image, label"
    assert site.refusal(PREDICT) == (
        "42703",
        'public.images_table has no column "picture" to be the feature',
        f'The model "digits" needs {needed}; public.images_table has {there}. Give a view that has them.',
    )


def test_a_table_without_columns_is_told_as_such(site):
    add_model(site)
    site.execute("CREATE TABLE bare (); GRANT SELECT ON bare TO alice")
    refusal = site.refusal("SELECT tensile_submit('vgg16', 'bare', 'image')")
    assert refusal[2] == "It has no columns."
    refusal = site.refusal("SELECT * FROM tensile_predict('digits', 'bare')")
    assert (
        refusal[2] == 'The model "digits" needs image; public.bare has no columns. Give a view that has them.'
    )


def test_of_a_table_without_rows_there_are_no_predictions_and_no_metrics(site):
    add_model(site)
    site.execute("CREATE TABLE empty (LIKE images_table); GRANT SELECT ON empty TO alice")
    with Puppet(site, lambda puppet, job: puppet.succeed(job)):
        assert site.execute("SELECT * FROM tensile_predict('digits', 'empty')", role="alice") == []
    refusal = site.refusal("SELECT * FROM tensile_evaluate('digits', 'empty')")
    assert refusal[:2] == ("22000", "public.empty has no rows")


def test_a_prediction_without_a_target_column_is_made_and_an_evaluation_refused(site):
    add_model(site)
    site.execute("CREATE VIEW unlabelled AS SELECT image FROM images_table")
    site.execute("GRANT SELECT ON unlabelled TO alice")
    with Puppet(site, predict):
        rows = site.execute("SELECT * FROM tensile_predict('digits', 'unlabelled')", role="alice")
    assert len(rows) == 2
    refusal = site.refusal("SELECT * FROM tensile_evaluate('digits', 'unlabelled')")
    assert refusal == (
        "42703",
        'public.unlabelled has no column "label" to be the target',
        'The model "digits" needs image, label; public.unlabelled has image. Give a view that has them.',
    )


@pytest.mark.parametrize("call", ["tensile_predict('digit', 'images_table')", "tensile_drop_model('digit')"])
def test_an_unknown_model_is_refused_with_the_nearest_name(site, call):
    add_model(site)
    assert site.refusal(f"SELECT {call}") == ("42704", 'no model "digit"', 'Did you mean "digits"?')


def test_an_unknown_version_is_refused_with_those_that_there_are(site):
    add_model(site, version=1)
    add_model(site, version=2)
    refusal = site.refusal("SELECT tensile_predict('digits', 'images_table', 3)")
    assert refusal == ("42704", 'model "digits" has no version 3', "It has: 1, 2.")


def test_the_model_of_another_role_is_as_if_it_were_not_there(site):
    add_model(site, owner="bob")
    assert site.refusal(PREDICT)[:2] == ("42704", 'no model "digits"')
    assert site.execute("SELECT * FROM tensile_models()", role="alice") == []


def test_an_admin_uses_the_model_of_a_user_but_an_own_one_first(site):
    of_bob = add_model(site, owner="bob")
    asked = []

    def remember(puppet, job):
        asked.append(job["model_id"])
        puppet.succeed(job)

    with Puppet(site, remember):
        site.execute(PREDICT, role="carol")
        own = add_model(site, owner="carol")
        site.execute(PREDICT, role="carol")
    assert asked == [of_bob, own]


def test_an_admin_must_say_whose_model_where_several_users_have_one(site):
    add_model(site, owner="bob")
    add_model(site, owner="alice")
    assert site.refusal(PREDICT, role="carol") == (
        "42702",
        'several owners have a model "digits": alice, bob',
        "SET ROLE to one of them.",
    )


def test_ctrl_c_ends_a_prediction(site):
    add_model(site)
    with Puppet(site, Puppet.wait_for_cancel), site.connect("alice") as connection:
        site.soon_after_a_job(connection.cancel_safe)
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(PREDICT)
    assert site.job(1)["state"] == "cancelled"


def test_a_prediction_is_refused_where_its_rows_could_not_be_seen(site):
    add_model(site)
    with site.connect("alice", autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
            connection.execute(PREDICT)
    assert caught.value.diag.message_hint == (
        "Call it at isolation level READ COMMITTED; in a view that is learned from, predict each row by"
        " tensile_predict(model, row)."
    )


def test_models_are_listed_with_what_they_learned(site):
    add_model(site)
    (row,) = site.execute("SELECT * FROM tensile_models()", role="alice")
    row.pop("created_at")
    assert row == {
        "model": "digits",
        "version": 1,
        "owner": "alice",
        "architecture": "vgg16",
        "task": "classification",
        "target": "label",
        "features": ["image"],
        "classes": 2,
        "metrics": {"accuracy": 0.75},
        "parameter_bytes": 100,
        "job_id": None,
        "pinned": False,
    }


def test_dropping_a_model_drops_its_weights_and_only_the_version_given(site):
    for version in (1, 2, 3):
        model = add_model(site, version=version)
        site.execute(
            "INSERT INTO tensile.model_weights VALUES (%s, 'parameter/w', 0, 'float32', '{1}', '\\x00')",
            model,
        )
    assert site.value("SELECT tensile_drop_model('digits', 2)", role="alice") == 1
    assert site.value("SELECT array_agg(version ORDER BY version) FROM tensile.models") == [1, 3]
    assert site.value("SELECT tensile_drop_model('digits')", role="alice") == 2
    assert site.value("SELECT count(*) FROM tensile.model_weights") == 0


def test_explain_returns_the_rows_of_the_worker_and_makes_no_model(site):
    explained = [
        {"property": "vanilla peak", "value": "4194304", "unit": "bytes", "detail": "4.0 MiB"},
        {"property": "fits", "value": "yes", "unit": None, "detail": None},
    ]
    asked = []

    def explain(puppet, job):
        asked.append((job["kind"], job["architecture"], job["batch_size"]))
        puppet.succeed(job, result={"rows": explained})

    with Puppet(site, explain):
        rows = site.execute(
            "SELECT * FROM tensile_explain('vgg16', 'images_table', batch_size => 8)", role="alice"
        )
    assert rows == explained
    assert asked == [("explain", "vgg16", 8)]


def test_explaining_what_does_not_fit_says_so_in_a_row(site):
    message = "the job needs at least 2.0 GiB of device memory, but the budget is 1.0 GiB"
    with Puppet(site, lambda puppet, job: puppet.fail(job, "53200", message, "Shrink it.")):
        rows = site.execute("SELECT * FROM tensile_explain('vgg16', 'images_table')", role="alice")
    detail = f"{message}. Shrink it."
    assert rows == [{"property": "fits", "value": "no", "unit": None, "detail": detail}]


def test_explaining_bad_rows_is_an_error_as_in_training(site):
    with Puppet(site, lambda puppet, job: puppet.fail(job, "22004", "row 3 has a NULL", "Delete it.")):
        refusal = site.refusal("SELECT * FROM tensile_explain('vgg16', 'images_table')")
    assert refusal == ("22004", "row 3 has a NULL", "Delete it.")


def test_a_model_that_is_dropped_once_it_was_found_is_no_more(site, request):
    from tensile_db.worker.jobs.model_use import find_model, read_state

    model = add_model(site)
    engine = make_engine(site.admin, application_name="test", pool_size=1)
    request.addfinalizer(engine.dispose)
    records = SimpleNamespace(must=partial(in_transaction, engine))
    job = SimpleNamespace(row=SimpleNamespace(id=1, model="digits", model_id=model), records=records)
    found = find_model(job)
    site.execute("DELETE FROM tensile.models")
    for use in (find_model, partial(read_state, model=found)):
        with pytest.raises(UndefinedModel, match='the model "digits" is no more'):
            use(job)
