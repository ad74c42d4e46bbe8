"""Rows of views have the keys that are asked for; a column tells which rows are held out."""

import json

import pytest

from tests.jobs.ended_jobs import notices, refused, trained
from tests.jobs.row_client import Client

VIEW = """
    CREATE VIEW half AS
    SELECT 'n' || id AS "the ""key", a, b, label, id %% 3 = 0 AS is_test, md5(id::text)::uuid AS uuid
    FROM points ORDER BY {}
"""


def make_view(database, order="id"):
    database.execute("DROP VIEW IF EXISTS half")
    database.execute(VIEW.format(order))
    database.execute("ALTER VIEW half OWNER TO anna")


@pytest.fixture
def view(database):
    make_view(database)
    return database


@pytest.fixture
def client(view, start_worker):
    start_worker()
    view.wait_for_worker()
    return Client(view)


def test_predictions_of_a_view_have_the_key_that_is_asked_for(client):
    train = "SELECT loss FROM tensile_train('mlp', 'half', features => '{a, b}', options => %s)"
    client.rows(train, json.dumps({"key": 'the "key'}))
    want = {f"n{key}": prediction for key, prediction in client.table("mlp", "points").items()}
    for schema in ("", "tensile."):
        for source in ("'half'", "'half'::regclass"):
            predict = f"{schema}tensile_predict('mlp', {source}, NULL, 'the \"key')"
            assert dict(client.rows(f"SELECT row_key, prediction FROM {predict}")) == want
    of_uuid = client.rows(
        "SELECT count(*) FROM tensile_predict('mlp', 'half', NULL, 'uuid') p JOIN half h"
        " ON h.uuid = p.row_key::uuid"
    )
    assert of_uuid == [(100,)]
    # Without one they have none, as ever, and a table's rows have their primary key.
    assert {key for key, *_ in client.rows("SELECT * FROM tensile_predict('mlp', 'half')")} == {None}
    null = client.rows("SELECT row_key, prediction FROM tensile_predict('mlp', 'points', NULL, NULL)")
    assert dict(null) == client.table("mlp", "points")
    for key, sqlstate, message in (
        ("kee", "42703", 'public.half has no column "kee" to be the key'),
        ("", "42703", 'public.half has no column "" to be the key'),
    ):
        query = f"SELECT * FROM tensile_predict('mlp', 'half', NULL, '{key}')"
        assert client.refusal(query)[:2] == (sqlstate, message)


@pytest.mark.thorough
def test_probabilities_of_a_table_are_those_of_its_rows(client):
    client.rows("SELECT loss FROM tensile_train('mlp', 'points')")
    of_rows = client.ask_all("tensile_probabilities('mlp', points)", "points")
    for schema in ("", "tensile."):
        for source in ("'points'", "'points'::regclass"):
            found = dict(client.rows(f"SELECT * FROM {schema}tensile_probabilities('mlp', {source})"))
            assert found.keys() == of_rows.keys()
            for key, probabilities in found.items():
                assert probabilities == pytest.approx(of_rows[key], abs=1e-6)
    (likeliest,) = client.rows(
        "SELECT bool_and((probabilities ->> prediction)::float8 = probability)"
        " FROM tensile_probabilities('mlp', 'half', key => 'the \"key')"
        " JOIN tensile_predict('mlp', 'half', version => 1, key => 'the \"key') USING (row_key)"
    )
    assert likeliest == (True,)
    client.rows("SELECT loss FROM tensile_train('mlp', 'points', 'a', '{b}', 'number')")
    assert client.refusal("SELECT * FROM tensile_probabilities('number', 'points')")[:2] == (
        "22023",
        'the model "number" predicts a number, which has no probabilities',
    )


def test_a_views_rows_are_read_in_the_order_of_the_key(view, start_worker):
    start_worker()
    request = {"features": ["a", "b"], "epochs": 2, "options": {"key": 'the "key'}}
    first = trained(view, "half", **request)
    make_view(view, "b, a")
    second = trained(view, "half", **request)
    assert view.weights(first["id"]) == view.weights(second["id"])
    unordered = trained(view, "half", features=["a", "b"], epochs=2)
    assert view.weights(unordered["id"]) != view.weights(first["id"])


def test_a_column_tells_which_rows_are_held_out(view, start_worker):
    start_worker()
    request = {"features": ["a", "b"], "epochs": 2}
    job = trained(view, "half", **request, options={"held_out": "is_test", "key": 'the "key'})
    view.execute("CREATE VIEW kept AS SELECT * FROM half WHERE NOT is_test")
    view.execute("ALTER VIEW kept OWNER TO anna")
    alone = trained(view, "kept", **request, validation=0, options={"key": 'the "key'})
    assert view.weights(job["id"]) == view.weights(alone["id"])
    (row,) = view.execute("SELECT count(*) AS n FROM half WHERE is_test")
    view.execute("CREATE VIEW tested AS SELECT * FROM half WHERE is_test")
    view.execute("ALTER VIEW tested OWNER TO anna")
    scored = view.wait(
        view.submit("tested", kind="evaluate", features=["a", "b"], model_id=job["model_id"], target="label")
    )
    assert scored["result"]["rows"] == row["n"] == 33
    validated = job["result"]["metrics"]
    for name, value in scored["result"]["metrics"].items():
        assert validated[f"validation_{name}"] == pytest.approx(value, rel=1e-6)


def test_columns_that_cannot_tell_are_refused(client):
    submit = "SELECT tensile_submit('mlp', 'half', features => '{{a}}', {})"
    for arguments, message in (
        (
            """options => '{"held_out": "a"}'""",
            'the column "a" of type real does not tell which rows are held out',
        ),
        (
            """options => '{"held_out": "is_test"}', validation => 0.2""",
            'the option "held_out" tells which rows are held out, and so does validation',
        ),
        ("""options => '{"key": "label"}'""", '"label" is the target, and does not tell which row it is, or'),
        ("""options => '{"key": "a"}'""", '"a" is both a feature and the key, or what tells which rows are'),
    ):
        sqlstate, found, _ = client.refusal(submit.format(arguments))
        assert sqlstate == "22023"
        assert found.startswith(message)
    # What is neither is a feature only where it is named.
    client.rows("SELECT tensile_submit('mlp', 'half', options => '{\"held_out\": \"is_test\"}')")
    client.rows("SELECT tensile_submit('mlp', 'half')")
    rows = client.database.execute("SELECT features FROM tensile.jobs ORDER BY id")
    assert [row["features"] for row in rows[-2:]] == [["a", "b"], ["a", "b", "is_test"]]


def test_a_column_that_is_true_everywhere_null_somewhere_or_nowhere_true_is_told(view, start_worker):
    start_worker()
    request = {"features": ["a"], "epochs": 1, "options": {"held_out": "t"}}
    for name, value, error in (
        ("everywhere", "true", ("22000", 'column "t" is true in all rows: none is left to train on')),
        ("somewhere", "nullif(id > 7, true)", ("22004", 'column "t" of row number 8 holds a NULL')),
    ):
        view.execute(f"CREATE VIEW {name} AS SELECT a, label, {value} AS t FROM points ORDER BY id")
        view.execute(f"ALTER VIEW {name} OWNER TO anna")
        assert refused(view, name, **request) == error
    view.execute("CREATE VIEW nowhere AS SELECT a, label, false AS t FROM points")
    view.execute("ALTER VIEW nowhere OWNER TO anna")
    job = trained(view, "nowhere", **request)
    assert "validation_loss" not in job["result"]["metrics"]


def test_the_primary_key_can_be_the_target_and_a_key_of_any_type_orders_rows(view, start_worker):
    start_worker()
    request = {"features": ["a", "b"], "epochs": 1}
    numbers = trained(view, "points", **request, target="id", options={"task": "regression"})
    assert numbers["result"]["metrics"]["train_loss"] > 0
    view.execute("CREATE VIEW odd AS SELECT json_build_object('n', id) AS j, a, b, label FROM points")
    view.execute("ALTER VIEW odd OWNER TO anna")
    first, second = (trained(view, "odd", **request, options={"key": "j"}) for _ in range(2))
    assert view.weights(first["id"]) == view.weights(second["id"])


def test_classes_whose_rows_are_all_held_out_are_told_or_refused(view, start_worker):
    start_worker()
    view.execute("CREATE VIEW ups AS SELECT *, label = 'up' AS t, id %% 3 AS third FROM points")
    view.execute("ALTER VIEW ups OWNER TO anna")
    request = {"features": ["a", "b"], "epochs": 1, "options": {"held_out": "t"}}
    assert refused(view, "ups", **request) == (
        "22000",
        'column "label" holds one class only in the rows that are trained on',
    )
    view.execute("CREATE VIEW thirds AS SELECT *, third = 2 AS last FROM ups")
    view.execute("ALTER VIEW thirds OWNER TO anna")
    job = trained(view, "thirds", **request | {"target": "third", "options": {"held_out": "last"}})
    told = [said for said in notices(view, job) if "held out" in said]
    assert told == [
        "all rows of 1 class are held out, which the model will hardly predict: 2",
        "no row of 2 of 3 classes is held out; validation says nothing of them: 0, 1",
    ]


def test_what_is_no_name_of_a_column_is_refused_by_a_worker_too(view, start_worker):
    start_worker()
    request = {"features": ["a"], "options": {"key": ["a"]}}
    assert refused(view, "points", **request) == ("22023", 'option "key" cannot be ["a"]')
