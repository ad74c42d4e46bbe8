"""A real worker learns from columns of times, which are seconds to it."""

import datetime as dt

import numpy as np
import pytest

from tests.db.training.tables import add_table
from tests.jobs.ended_jobs import model_of, refused, trained
from tests.jobs.row_client import Client

#: Of a class that the day decides.
EVENTS = """
    CREATE TABLE events AS
    SELECT i AS id, date '2026-03-20' + i %% 20 AS day,
           timestamp '2026-03-20 12:00' + i * interval '1 hour 0.25 s' AS local,
           timestamptz '2026-03-20 12:00+00' + i * interval '1 hour' AS at,
           time '00:00' + i * interval '7 min' AS clock,
           (time '01:00' + i * interval '7 min')::timetz AS zoned,
           CASE WHEN i %% 6 > 0 THEN i * interval '1 day 2 s' END AS span,
           (i %% 20 < 10) AS label
    FROM generate_series(1, 200) i
"""
COLUMNS = ["day", "local", "at", "clock", "zoned", "span"]


@pytest.fixture
def events(database):
    add_table(database, "events", EVENTS)
    return database


def test_times_are_learned_from_as_seconds(events, start_worker):
    start_worker()
    job = trained(events, "events", features=["day", "at"], epochs=30, learning_rate=0.05, optimizer="adam")
    assert job["result"]["metrics"]["validation_accuracy"] > 0.9
    spec = model_of(events, job)["features"]
    assert [encoding["time"] for encoding in spec["encodings"]] == ["date", "timestamptz"]
    first = dt.datetime(2026, 3, 20, tzinfo=dt.UTC).timestamp()
    days = first + 86400 * (np.arange(1, 201) % 20)
    assert spec["mean"][0] == pytest.approx(days.mean(), abs=86400)
    assert spec["scale"][0] == pytest.approx(days.std(), rel=0.1)


def test_rows_get_what_a_table_of_them_gets_whatever_the_sessions_settings(events, start_worker):
    start_worker()
    events.wait_for_worker()
    client = Client(events)
    client.rows(
        "SELECT loss FROM tensile_train('mlp', 'events', 'label',"
        " '{day, local, at, clock, zoned, span}', options => '{\"nulls\": \"impute\"}')"
    )
    listed = ", ".join(COLUMNS)
    want = client.table("mlp", "events", "probability")
    one = "(tensile_probabilities('mlp', {}) ->> (tensile_predict('mlp', {})))::float8"
    for settings in (
        "SET TimeZone = 'UTC'; SET extra_float_digits = -15",
        "SET TimeZone = 'America/New_York'; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard'",
        "SET TimeZone = 'Asia/Kathmandu'; SET IntervalStyle = 'iso_8601'; SET DateStyle = 'German'",
    ):
        for form in ("events", f"ROW({listed})", "to_jsonb(events)", f"jsonb_build_array({listed})"):
            with client.database.connect() as connection:
                connection.execute(settings)
                query = f"SELECT id::text, {one.format(form, form)} FROM events WHERE id < 20"
                # As text it would have as few digits as the session's numbers.
                found = dict(connection.execute(query, binary=True).fetchall())
            assert found == pytest.approx({key: want[key] for key in found}, abs=1e-5), (settings, form)
    # Seconds are taken as such.
    seconds = ", ".join(f"date_part('epoch', {name})" for name in COLUMNS)
    form = f"ARRAY[{seconds}]"
    found = client.ask_all(one.format(form, form), "events WHERE id < 5")
    assert found == pytest.approx({key: want[key] for key in found}, abs=1e-5)
    assert client.refusal("SELECT tensile_predict('mlp', '[\"soon\", 1, 2, 3, 4, 5]'::jsonb)")[:2] == (
        "22007",
        'invalid input syntax for type date: "soon"',
    )
    assert client.refusal("SELECT tensile_predict('mlp', '[{}, 1, 2, 3, 4, 5]'::jsonb)")[:2] == (
        "22023",
        'column "day" is given as {}, which is no time',
    )


def test_infinity_is_refused_and_so_is_a_time_as_the_target(events, start_worker):
    start_worker()
    events.execute("UPDATE events SET at = 'infinity' WHERE id = 9")
    assert refused(events, "events", features=["at"]) == (
        "22000",
        'column "at" of row id=9 holds NaN or a number out of range',
    )
    assert refused(events, "events", features=["day"], target="at") == (
        "22023",
        'column "at" has the type timestamp with time zone, which cannot be a target',
    )


def test_times_of_another_type_are_refused_for_the_time_zone_decides_what_they_are(events, start_worker):
    start_worker()
    job = trained(events, "events", features=["day"], epochs=1)
    model = model_of(events, job)
    for name, cast, holds in (
        ("stamped", "day::timestamp", "times of type timestamp"),
        ("numbered", "date_part('epoch', day)", "numbers or booleans"),
        ("named", "day::text", "texts"),
        ("clocked", "clock", "times of type time"),
    ):
        add_table(events, name, f"CREATE TABLE {name} AS SELECT id, {cast} AS day, label FROM events")
        done = events.wait(events.submit(name, kind="predict", features=["day"], model_id=model["id"]))
        assert (done["error_sqlstate"], done["error_message"]) == (
            "22023",
            f'column "day" holds {holds}, and the model learned from times of type date there',
        )
        assert done["error_hint"] == "Give a view in which it is of type date."
