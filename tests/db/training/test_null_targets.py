"""A real worker leaves rows without a target out, where that is asked for."""

import numpy as np

from tests.db.training.tables import add_table
from tests.jobs.ended_jobs import trained

SKIP = {"null_targets": "skip"}


def add_points(database, name, label):
    """Add a table of the points, with another label."""
    add_table(database, name, f"CREATE TABLE {name} AS SELECT id, a, b, {label} AS label FROM points")


def ended(database, source, **request):
    return database.wait(database.submit(source, **request))


def test_rows_without_a_target_are_refused_and_the_hint_says_how_to_leave_them_out(database, start_worker):
    add_points(database, "partly", "CASE WHEN id %% 3 > 0 THEN label END")
    start_worker()
    row = ended(database, "partly")
    assert row["error_sqlstate"] == "22004"
    assert row["error_message"] == 'column "label" of row id=3 holds a NULL'
    assert row["error_hint"] == (
        'Leave such rows out by a view with WHERE "label" IS NOT NULL, or replace the NULLs.'
        """ Or by an option: options => '{"null_targets": "skip"}'."""
    )


def test_a_training_is_that_of_the_other_rows(database, start_worker):
    add_points(database, "partly", "CASE WHEN id %% 3 > 0 THEN label END")
    database.execute("CREATE TABLE those AS SELECT * FROM partly WHERE label IS NOT NULL")
    database.execute("ALTER TABLE those OWNER TO anna")
    database.execute("ALTER TABLE those ADD PRIMARY KEY (id)")
    start_worker()
    left_out = trained(database, "partly", options=SKIP)
    without = trained(database, "those")
    assert database.weights(left_out["id"]) == database.weights(without["id"])
    assert left_out["rows_total"] == 67


def test_so_it_is_with_numbers_and_in_evaluations_of_the_model(database, start_worker):
    add_points(database, "prices", "CASE WHEN id %% 4 > 0 THEN a + b END")
    start_worker()
    job = trained(database, "prices", options={"task": "regression", **SKIP})
    evaluation = {"kind": "evaluate", "model_id": job["model_id"], "architecture": None, "options": {}}
    evaluated = trained(database, "prices", **evaluation)["result"]
    database.execute("DELETE FROM prices WHERE label IS NULL")
    without = trained(database, "prices", **evaluation)["result"]
    assert evaluated["rows"] == 75
    assert evaluated | {"seconds": 0} == without | {"seconds": 0}


def test_in_evaluations_of_other_models_they_are_refused(database, start_worker):
    start_worker()
    job = trained(database, "points")
    database.execute("UPDATE points SET label = NULL WHERE id = 7")
    row = ended(database, "points", kind="evaluate", model_id=job["model_id"], architecture=None)
    assert row["error_message"] == 'column "label" of row id=7 holds a NULL'
    assert "null_targets" not in row["error_hint"]


def test_where_no_row_is_left_it_is_said_why(database, start_worker):
    add_points(database, "none", "NULL::text")
    start_worker()
    row = ended(database, "none", options=SKIP)
    assert row["error_sqlstate"] == "22000"
    assert row["error_message"] == 'none has no rows that you can see with a "label"'


def test_a_hostile_name_is_a_name(database, start_worker):
    name = """la"b'e;l"""
    database.execute("CREATE TABLE odd AS SELECT id, a, b, label FROM points")
    quoted = '"la""b\'e;l"'
    database.execute(f"ALTER TABLE odd RENAME label TO {quoted}")
    database.execute(f"UPDATE odd SET {quoted} = NULL WHERE id %% 2 = 0")
    database.execute("ALTER TABLE odd OWNER TO anna")
    start_worker()
    row = trained(database, "odd", target=name, options=SKIP)
    assert row["rows_total"] == 50
    assert np.isfinite(row["result"]["loss"])
