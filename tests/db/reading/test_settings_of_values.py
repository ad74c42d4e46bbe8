"""What a source's values are is the asking session's to say: times of day, and how they are written."""

import psycopg
import pytest

from tensile_db.data.snapshot import Reading, read
from tensile_db.data.stored_rows import key_texts

SETUP = """
CREATE TABLE events (at timestamptz PRIMARY KEY, x real NOT NULL, label int NOT NULL);
INSERT INTO events SELECT timestamptz '2026-01-01 00:30+00' + i * interval '1 hour', i, mod(i, 2)
    FROM generate_series(0, 47) i;
CREATE VIEW hours AS SELECT extract(hour FROM at)::real AS hour, at::text AS label FROM events
    WHERE x < 2 ORDER BY x;
GRANT SELECT ON events, hours TO alice;
"""

TOKYO = {"TimeZone": "Asia/Tokyo", "DateStyle": "German, DMY"}


@pytest.fixture
def read_as_alice(site, tmp_path):
    site.execute(SETUP)

    def read_it(table, settings):
        reading = Reading(
            relation=site.value("SELECT %s::text::regclass::oid::bigint AS oid", table),
            submitter=site.value("SELECT oid::bigint FROM pg_roles WHERE rolname = 'alice'"),
            features=None,
            target="label",
            wants_target=True,
            settings=settings,
        )
        with psycopg.connect(site.dsn("puppet_login"), autocommit=True) as connection:
            before = connection.execute("SHOW TimeZone").fetchone()
            found = read(connection, reading, tmp_path / "rows")
            assert connection.execute("SHOW TimeZone").fetchone() == before
            return found

    return read_it


def test_a_view_gives_the_worker_what_it_gives_the_session(read_as_alice):
    _, rows = read_as_alice("hours", TOKYO)
    assert rows.values[0].tolist() == [9, 10]
    assert key_texts(rows.values[1], range(2)) == ["01.01.2026 09:30:00 JST", "01.01.2026 10:30:00 JST"]


def test_no_other_settings_are_heeded(read_as_alice):
    _, rows = read_as_alice("hours", {"TimeZone": "UTC", "role": "postgres", "search_path": "public"})
    assert rows.values[0].tolist() == [0, 1]


def test_keys_that_are_times_are_written_as_the_session_writes_them(database, start_worker):
    start_worker()
    database.wait(database.submit("points"))
    database.execute(
        "CREATE TABLE events AS SELECT timestamptz '2026-01-01 00:30+00' + id * interval '1 hour' AS at,"
        " a, b, label FROM points; ALTER TABLE events ADD PRIMARY KEY (at); ALTER TABLE events OWNER TO anna"
    )
    with database.connect() as connection:
        for name, value in TOKYO.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        connection.execute("SELECT * FROM tensile_train('mlp', 'events', features => '{a,b}', model => 'm')")
        joined = (
            "SELECT count(*) FROM events e JOIN tensile_predict('m', 'events') p ON p.row_key = e.at::text"
        )
        assert connection.execute(joined).fetchone() == (100,)
        connection.execute("SET TimeZone = 'UTC'")
        assert connection.execute(joined).fetchone() == (100,)
    *_, kept, _, then = database.execute("SELECT settings FROM tensile.jobs ORDER BY id")
    assert (kept["settings"]["TimeZone"], then["settings"]["TimeZone"]) == ("Asia/Tokyo", "UTC")
