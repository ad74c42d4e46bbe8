"""A real worker learns from columns of texts, and from rows with NULLs."""

import math

import numpy as np
import pytest

from tests.db.test_serving import Client, wait_for
from tests.db.test_worker_start_from import add_table, model_of, notices, refused, trained

#: Of a class that the city and the plan decide, where the age is none, and else the age.
VISITS = """
    CREATE TABLE visits AS
    SELECT i AS id, (ARRAY['Ulm', 'Bern', 'Graz ''x"', ''])[1 + i %% 4] AS city,
           (ARRAY['free', 'paid', NULL])[1 + i / 4 %% 3]::plan AS plan,
           CASE WHEN i %% 5 > 0 THEN (i * 7 %% 60)::smallint END AS age,
           nullif(i %% 7, 0) > 3 AS member,
           (i * 7 %% 60)::float8 AS y,
           CASE WHEN i %% 4 = 0 AND i / 4 %% 3 <> 1 THEN 'yes' ELSE 'no' END AS label
    FROM generate_series(1, 240) i
"""
FEATURES = ["city", "plan", "age", "member"]
TRAINING = {"features": FEATURES, "epochs": 30, "learning_rate": 0.05, "optimizer": "adam"}
IMPUTED = {"options": {"nulls": "impute"}}


@pytest.fixture
def visits(database):
    database.execute("CREATE TYPE plan AS ENUM ('paid', 'free')")
    add_table(database, "visits", VISITS)
    return database


def predicted(database, job, source):
    """Return what a table's rows are predicted to be, by their keys."""
    model = model_of(database, job)
    columns = model["features"]["columns"]
    done = database.wait(
        database.submit(source, kind="predict", features=columns, model_id=model["id"], batch_size=50)
    )
    assert done["state"] == "succeeded", done["error_message"]
    rows = database.execute(
        "SELECT row_key, prediction FROM tensile.predictions WHERE job_id = %s", done["id"]
    )
    return {row["row_key"]: row["prediction"] for row in rows}


def test_a_class_is_learned_that_texts_and_their_nulls_decide(visits, start_worker):
    start_worker()
    job = trained(visits, "visits", **TRAINING, **IMPUTED)
    assert job["result"]["metrics"]["validation_accuracy"] == 1.0
    spec = model_of(visits, job)["features"]
    assert spec["source_shape"] == [4 + 3 + 2 + 2]
    assert [encoding["categories"] for encoding in spec["encodings"]] == [
        ["", "Bern", "Graz 'x\"", "Ulm"],
        ["free", "paid"],
        None,
        None,
    ]
    assert [encoding["tells_null"] for encoding in spec["encodings"]] == [False, True, True, True]
    found = predicted(visits, job, "visits")
    (row,) = visits.execute("SELECT count(*) AS n FROM visits WHERE label = 'yes'")
    assert list(found.values()).count("yes") == row["n"]


def test_texts_of_no_category_and_nulls_where_there_were_none_are_predicted(visits, start_worker):
    start_worker()
    job = trained(visits, "visits", **TRAINING, **IMPUTED)
    add_table(
        visits,
        "strangers",
        "CREATE TABLE strangers AS SELECT 1 AS id, NULL::varchar(9) AS city, 'none'::text AS plan,"
        " NULL::numeric AS age, NULL::boolean AS member UNION ALL SELECT 2, 'Ulm', 'free', 3, true",
    )
    assert set(predicted(visits, job, "strangers")) == {"1", "2"}


def test_a_number_is_learned_beside_texts_and_the_weights_are_the_same_twice(visits, start_worker):
    start_worker()
    request = {"features": ["city", "age"], "target": "y", "epochs": 3, **IMPUTED}
    first = trained(visits, "visits", **request)
    second = trained(visits, "visits", **request)
    assert visits.weights(first["id"]) == visits.weights(second["id"])
    scaling = model_of(visits, first)["features"]["encodings"][1]
    ages = np.array([i * 7 % 60 for i in range(1, 241) if i % 5 > 0])
    assert scaling["fill"] == pytest.approx(ages.mean(), abs=2)


def test_a_null_is_refused_with_the_option_that_takes_it(visits, start_worker):
    start_worker()
    job = visits.wait(visits.submit("visits", features=["city", "plan"]))
    assert (job["error_sqlstate"], job["error_message"]) == (
        "22004",
        'column "plan" of row id=8 holds a NULL',
    )
    assert job["error_hint"] == (
        'Leave such rows out by a view with WHERE "plan" IS NOT NULL, or replace the NULLs.'
        """ Or learn from them, too: options => '{"nulls": "impute"}'."""
    )


def test_a_model_that_takes_no_nulls_refuses_rows_with_one(visits, start_worker):
    start_worker()
    job = trained(visits, "visits", features=["city"], epochs=1)
    visits.execute("UPDATE visits SET city = NULL WHERE id = 7")
    model = model_of(visits, job)
    done = visits.wait(visits.submit("visits", kind="predict", features=["city"], model_id=model["id"]))
    assert (done["error_sqlstate"], done["error_message"]) == (
        "22004",
        'column "city" of row id=7 holds a NULL',
    )
    assert "nulls" not in done["error_hint"]


def test_texts_are_refused_where_a_model_learned_from_numbers_and_the_other_way_round(visits, start_worker):
    start_worker()
    texts = trained(visits, "visits", features=["city"], epochs=1)
    numbers = trained(visits, "visits", features=["y"], epochs=1)
    add_table(
        visits,
        "turned",
        "CREATE TABLE turned AS SELECT id, y AS city, city AS y, label FROM visits",
    )
    for job, column, message in (
        (texts, "city", "holds numbers or booleans, and the model learned from texts there"),
        (numbers, "y", "holds texts, and the model learned from numbers or booleans there"),
    ):
        model = model_of(visits, job)
        done = visits.wait(visits.submit("turned", kind="predict", features=[column], model_id=model["id"]))
        assert (done["error_sqlstate"], done["error_message"]) == ("22023", f'column "{column}" {message}')


def test_a_training_starts_from_a_model_with_its_categories_and_tells_of_others(visits, start_worker):
    start_worker()
    first = trained(visits, "visits", **TRAINING, **IMPUTED)
    visits.execute("UPDATE visits SET city = 'Rom', age = NULL WHERE id IN (3, 5)")
    second = trained(visits, "visits", **TRAINING, **IMPUTED, initial_model_id=first["model_id"])
    specs = [model_of(visits, job)["features"] for job in (first, second)]
    assert specs[0]["encodings"] == specs[1]["encodings"]
    assert notices(visits, second) == [
        'the model "m" that the training starts from knows nothing of 1 text of column "city": "Rom"'
    ]


def test_a_column_of_many_texts_and_images_networks_are_refused(visits, start_worker):
    start_worker()
    add_table(
        visits,
        "names",
        "CREATE TABLE names AS SELECT i AS id, 'n' || i AS name, i %% 2 AS label"
        " FROM generate_series(1, 2000) i",
    )
    assert refused(visits, "names", None, features=["name"]) == (
        "22000",
        'column "name" holds 1,500 different texts, too many for categories',
    )
    request = {"architecture": "test_resnet", "features": ["city"]}
    assert refused(visits, "visits", None, **request) == (
        "22023",
        'architecture "test_resnet" takes images, but the features are columns of numbers, texts and times',
    )


def test_nan_counts_as_null_where_these_are_taken(visits, start_worker):
    start_worker()
    visits.execute("UPDATE visits SET y = 'NaN' WHERE id <= 40")
    job = trained(visits, "visits", features=["y"], epochs=1, **IMPUTED)
    (encoding,) = model_of(visits, job)["features"]["encodings"]
    assert encoding["tells_null"]
    assert math.isfinite(encoding["fill"])


def test_from_sql_rows_get_what_a_table_of_them_gets_in_every_form(visits, start_worker):
    start_worker()
    wait_for(lambda: visits.execute("SELECT id FROM tensile.workers WHERE state = 'ready'"))
    # In JSON its values have spaces at the end.
    visits.execute("ALTER TABLE visits ALTER COLUMN city TYPE character(9)")
    client = Client(visits)
    train = (
        "SELECT loss FROM tensile_train('mlp', 'visits', 'label', '{city, plan, age, member}', options => %s)"
    )
    client.rows(train, '{"nulls": "impute"}')
    want = client.table("mlp", "visits")
    assert len(want) == 240
    for form in (
        "visits",
        "ROW(city, plan, age, member)",
        "to_jsonb(visits)",
        "jsonb_build_array(city, plan, age, member)",
        "jsonb_build_object('city', city::text, 'plan', plan, 'age', age, 'member', member)",
    ):
        assert client.ask_all(f"tensile_predict('mlp', {form})", "visits") == want, form
    assert client.refusal("SELECT tensile_predict('mlp', ARRAY[1, 2, 3, 4])")[:2] == (
        "22023",
        'the model learned from texts in column "city", and an array has numbers alone',
    )
    start = "SELECT loss FROM tensile_train(NULL, 'visits', options => '{\"start_from\": \"mlp\"%s}')"
    client.rows(start.replace("%s", ""))
    assert client.refusal(start.replace("%s", ', "nulls": "refuse"')) == (
        "22023",
        'the option "nulls" is "impute" in the model "mlp" that the training starts from, not "refuse"',
        "Leave it out.",
    )
    (row,) = client.rows("SELECT features FROM tensile_models() LIMIT 1")
    assert row == (["city", "plan", "age", "member"],)
