"""A real worker refuses to predict tables whose columns are not like those that the model learned from."""

import io

import numpy as np
import psycopg
import pytest
from PIL import Image


def _png(number):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def columns(database):
    """Tables of anna that have the same rows in columns `v` of several types."""
    with psycopg.connect(database.admin) as connection:
        connection.execute("CREATE TABLE files (id int PRIMARY KEY, v bytea, label int)")
        for i in range(40):
            connection.execute("INSERT INTO files VALUES (%s, %s, %s)", [i, _png(i + 80 * (i % 2)), i % 2])
        connection.execute(
            "CREATE TABLE numbers AS SELECT id, id::float8 AS v, label FROM files;"
            "CREATE TABLE arrays AS SELECT id, array_fill(id::float8, ARRAY[16]) AS v, label FROM files"
        )
        for table in ("files", "numbers", "arrays"):
            connection.execute(f"ALTER TABLE {table} OWNER TO anna")
    return database


@pytest.mark.parametrize(
    ("trained", "others"),
    [
        (
            "files",
            {
                "numbers": "the model learned from the column v, images in files, and not from numbers",
                "arrays": "the model learned from the column v, images in files, and not from arrays",
            },
        ),
        ("numbers", {"files": "the model learned from the column v, not from images"}),
        (
            "arrays",
            {
                "files": "the model learned from the column v, not from images",
                "numbers": "the model learned from the column v, arrays of 16 elements, and not from numbers",
            },
        ),
    ],
)
def test_a_column_of_another_kind_is_refused(columns, start_worker, trained, others):
    start_worker()
    model = columns.wait(columns.submit(trained, features=["v"], epochs=1))
    assert model["state"] == "succeeded", model["error_message"]
    for kind in ("predict", "evaluate"):
        using = {"kind": kind, "features": ["v"], "model_id": model["model_id"], "batch_size": 16}
        assert columns.wait(columns.submit(trained, **using))["state"] == "succeeded"
        for other, message in others.items():
            row = columns.wait(columns.submit(other, **using))
            assert (row["error_sqlstate"], row["error_message"]) == ("22023", message)


def test_an_evaluation_refuses_a_target_that_is_no_class(columns, start_worker):
    start_worker()
    model = columns.wait(columns.submit("numbers", features=["v"], epochs=1))
    using = {"kind": "evaluate", "features": ["v"], "model_id": model["model_id"], "batch_size": 16}
    columns.execute("ALTER TABLE numbers ALTER label TYPE float8")
    assert columns.wait(columns.submit("numbers", **using))["state"] == "succeeded"
    for label in ("0.99", "NaN", "-Infinity"):
        columns.execute("UPDATE numbers SET label = %s::float8 WHERE id = 7", label)
        row = columns.wait(columns.submit("numbers", **using))
        assert row["error_sqlstate"] == "22000"
        assert row["error_message"].endswith(", a class that the model was not trained on")


def test_images_whose_dimensions_are_in_another_order_are_refused(columns, start_worker):
    for table, dimensions in (("pixels", "4, 4, 3"), ("planes", "3, 4, 4"), ("flat", "48")):
        columns.execute(
            f"CREATE TABLE {table} AS"
            f" SELECT id, array_fill(id::smallint, ARRAY[{dimensions}]) AS v, label FROM files;"
            f"ALTER TABLE {table} OWNER TO anna"
        )
    start_worker()
    training = {"features": ["v"], "epochs": 1, "options": {"raw_shape": [4, 4, 3]}}
    row = columns.wait(columns.submit("planes", **training))
    assert (row["error_sqlstate"], row["error_message"]) == (
        "22023",
        'raw_shape [4, 4, 3] contradicts the dimensions [3, 4, 4] of the arrays of column "v"',
    )
    model = columns.wait(columns.submit("pixels", **training))
    using = {"kind": "predict", "features": ["v"], "model_id": model["model_id"], "batch_size": 16}
    assert columns.wait(columns.submit("flat", **using))["state"] == "succeeded"
    row = columns.wait(columns.submit("planes", **using))
    assert row["error_sqlstate"] == "22023"
    assert row["error_message"].startswith('arrays of column "v" have the dimensions [3, 4, 4], but')


def test_arrays_of_truth_values_are_images_of_numbers(columns, start_worker):
    columns.execute(
        "CREATE TABLE boards AS SELECT id, label, (SELECT array_agg((p / 8 + p + label) %% 2 = 0 ORDER BY p)"
        " FROM generate_series(0, 63) p) AS v FROM files; ALTER TABLE boards OWNER TO anna"
    )
    start_worker()
    options = {"raw_shape": [8, 8], "image_size": 4}
    model = columns.wait(columns.submit("boards", features=["v"], epochs=1, options=options))
    (kept,) = columns.execute("SELECT features FROM tensile.models WHERE id = %s", model["model_id"])
    assert kept["features"]["mean"] == [pytest.approx(0.5)]
    assert kept["features"]["dtypes"] == ["bool"]
    using = {"kind": "evaluate", "features": ["v"], "model_id": model["model_id"], "batch_size": 16}
    assert columns.wait(columns.submit("boards", **using))["state"] == "succeeded"
