"""A real worker learns from columns of texts, and from rows with NULLs."""

import math

import numpy as np
import pytest

from tensile_db.data.split import split
from tests.db.training.tables import add_table
from tests.jobs.ended_jobs import model_of, notices, refused, trained
from tests.jobs.row_client import Client

#: Of a class that the city and the plan decide.
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
    assert [encoding.get("texts") for encoding in spec["encodings"]] == [
        ["", "Bern", "Graz 'x\"", "Ulm"],
        ["free", "paid"],
        None,
        None,
    ]
    assert [encoding["tells_null"] for encoding in spec["encodings"]] == [False, True, True, True]
    labels = visits.execute("SELECT id::text, label FROM visits")
    assert predicted(visits, job, "visits") == {row["id"]: row["label"] for row in labels}


def test_texts_of_no_category_and_nulls_where_there_were_none_are_0_and_the_mean(visits, start_worker):
    start_worker()
    visits.execute("UPDATE visits SET age = coalesce(age, 30)")
    request = {"features": ["city", "age"], "target": "y", "epochs": 10, **IMPUTED}
    job = trained(visits, "visits", **request)
    fill = model_of(visits, job)["features"]["encodings"][1]["fill"]
    add_table(
        visits,
        "strangers",
        "CREATE TABLE strangers (id, city, age) AS"
        " VALUES (1, 'Ulm', NULL::float8), (2, NULL, 3), (3, 'none', 3)",
    )
    visits.execute("INSERT INTO strangers VALUES (4, 'Ulm', %s)", fill)
    found = predicted(visits, job, "strangers")
    assert found["1"] == found["4"]
    assert found["2"] == found["3"]
    assert len(set(found.values())) == 2
    (last,) = visits.execute("SELECT max(id) AS id FROM tensile.jobs")
    assert notices(visits, last) == ['of column "city" 1 text is no category of the model "m": "none"']


def test_the_mean_of_the_rows_trained_on_stands_in_for_null(visits, start_worker):
    start_worker()
    job = trained(visits, "visits", features=["city", "age"], target="y", epochs=1, seed=3, **IMPUTED)
    rows, _ = split(240, job["validation"], 3, None)
    ages = np.array([i * 7 % 60 if i % 5 else np.nan for i in range(1, 241)])
    encoding = model_of(visits, job)["features"]["encodings"][1]
    assert encoding["fill"] == pytest.approx(np.nanmean(ages[rows]), rel=1e-12)


def test_a_training_that_is_paused_goes_on_to_the_same_weights(visits, start_worker, pause):
    start_worker()
    training = {"features": FEATURES, "epochs": 4, "optimizer": "adam", **IMPUTED}
    at_once = trained(visits, "visits", **training)
    paused = pause.trained(3, visits, "visits", **training)
    assert visits.weights(paused["id"]) == visits.weights(at_once["id"])


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


def test_a_nan_is_refused_with_the_option_that_takes_it(database, start_worker):
    start_worker()
    database.execute("UPDATE points SET b = 'NaN' WHERE id = 7")
    refusal = database.wait(database.submit("points", epochs=1))
    assert (refusal["error_sqlstate"], refusal["error_message"]) == (
        "22000",
        'the feature "b" of row id=7 holds NaN or a number out of range',
    )
    assert refusal["error_hint"].endswith(
        """ A model trained with options => '{"nulls": "impute"}' takes NaN as it does NULL."""
    )
    assert trained(database, "points", epochs=1, **IMPUTED)["state"] == "succeeded"


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
    (told,) = notices(visits, second)
    unknown = 'of column "city" 1 text is no category of the model "m": "Rom"'
    assert told == f"{unknown}; the training starts from it, and learns nothing from them"


def test_a_column_of_many_texts_is_refused(visits, start_worker):
    start_worker()
    add_table(
        visits,
        "names",
        "CREATE TABLE names AS SELECT i AS id, 'n' || i AS name, i %% 2 AS label"
        " FROM generate_series(1, 2000) i",
    )
    assert refused(visits, "names", features=["name"]) == (
        "22000",
        'column "name" holds 1,500 different texts, too many for categories',
    )


def test_networks_of_images_are_not_trained_on_texts(visits, start_worker):
    start_worker()
    request = {"architecture": "test_resnet", "features": ["city"]}
    assert refused(visits, "visits", **request) == (
        "22023",
        'architecture "test_resnet" takes images, but the features are columns of numbers or texts',
    )


def test_columns_of_all_kinds_of_texts_are_categories(visits, start_worker):
    start_worker()
    visits.execute("CREATE DOMAIN town AS varchar(20)")
    add_table(
        visits,
        "kinds",
        """CREATE TABLE kinds AS SELECT id, city::town AS a, left(city, 1)::"char" AS b, city::name AS c,
           city::char(12) AS d, plan, label FROM visits WHERE plan IS NOT NULL AND city <> ''""",
    )
    job = trained(visits, "kinds", features=["a", "b", "c", "d", "plan"], epochs=1)
    cities = ["Bern", "Graz 'x\"", "Ulm"]
    texts = [encoding["texts"] for encoding in model_of(visits, job)["features"]["encodings"]]
    assert texts == [cities, ["B", "G", "U"], cities, cities, ["free", "paid"]]


def test_nan_counts_as_null_where_these_are_taken(visits, start_worker):
    start_worker()
    visits.execute("UPDATE visits SET y = 'NaN' WHERE id <= 40")
    job = trained(visits, "visits", features=["y"], epochs=1, **IMPUTED)
    (encoding,) = model_of(visits, job)["features"]["encodings"]
    assert encoding["tells_null"]
    assert math.isfinite(encoding["fill"])


def test_from_sql_rows_get_what_a_table_of_them_gets_in_every_form(visits, start_worker):
    start_worker()
    visits.wait_for_worker()
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


@pytest.mark.thorough
def test_from_sql_one_number_may_be_null_and_evaluate_and_explain_take_nulls_too(visits, start_worker):
    start_worker()
    visits.wait_for_worker()
    visits.execute("CREATE VIEW known AS SELECT * FROM visits WHERE age IS NOT NULL")
    visits.execute("ALTER VIEW known OWNER TO anna")
    client = Client(visits)
    for model, nulls in (("imputing", "impute"), ("refusing", "refuse")):
        source = "visits" if nulls == "impute" else "known"
        train = "SELECT loss FROM tensile_train('mlp', %s, 'label', '{age}', model => %s, options => %s)"
        client.rows(train, source, model, f'{{"nulls": "{nulls}"}}')
    want = client.table("imputing", "visits")
    for form in ("age", "ARRAY[age]", "ROW(age)"):
        assert client.ask_all(f"tensile_predict('imputing', {form})", "visits") == want, form
        found = client.ask_all(f"tensile_predict('refusing', {form})", "visits")
        nulls = {key for key, prediction in found.items() if prediction is None}
        assert nulls == {str(key) for key in range(5, 241, 5)}, form
    scores = dict(client.rows("SELECT metric, value FROM tensile_evaluate('imputing', 'visits')"))
    assert 0 < scores["accuracy"] <= 1
    explain = "SELECT value FROM tensile_explain('mlp', 'visits', 'label', '{city, age}', options => %s)"
    client.rows(f"{explain} WHERE property = 'fits'", '{"nulls": "impute"}')
    search = (
        "SELECT value FROM tensile_search('mlp', 'visits', %s, trials => 2, epochs => 1, target => 'label'"
    )
    space = '{"seed": {"choices": [1, 2]}}'
    (best,) = client.rows(
        f"{search}, features => '{{city, age}}', options => %s)", space, '{"nulls": "impute"}'
    )
    assert best[0] > 0
