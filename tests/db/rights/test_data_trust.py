"""The code of a source's owner runs while the worker reads; it stays the owner's."""

import threading
import time

import psycopg
import pytest

from tensile_db.data.snapshot import Reading, read
from tensile_db.errors import BadData, Forbidden, JobCancelled

#: alice would become bob, to whom the worker's login may turn as well, and read what only he may.
SETUP = """
GRANT CREATE ON SCHEMA public TO alice;
CREATE TABLE bobs (secret int);
INSERT INTO bobs VALUES (42);
REVOKE ALL ON bobs FROM PUBLIC;
GRANT SELECT ON bobs TO bob;
SET ROLE alice;
CREATE FUNCTION steal() RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found int;
BEGIN
    -- Out of the reach of planning when the test makes its objects.
    IF session_user <> 'puppet_login' THEN RETURN 0; END IF;
    PERFORM pg_catalog.set_config('role', 'bob', true);
    SELECT secret INTO found FROM public.bobs;
    PERFORM pg_catalog.set_config('role', 'alice', true);
    RETURN found;
END $$;
"""


@pytest.fixture
def read_as_alice(site, tmp_path):
    """Return a function that makes something as alice, and reads it over the worker's login."""
    site.execute(SETUP)

    def read_it(statement, **options):
        site.execute(f"SET ROLE alice; {statement}")
        relation = site.value("SELECT 'source'::regclass::oid::bigint AS oid")
        submitter = site.value("SELECT oid::bigint FROM pg_roles WHERE rolname = 'alice'")
        reading = Reading(
            relation=relation, submitter=submitter, features=None, target=None, wants_target=True
        )
        with psycopg.connect(site.dsn("puppet_login"), autocommit=True) as connection:
            return read(connection, reading, tmp_path / "rows", **options)[1]

    return read_it


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("CREATE VIEW source AS SELECT steal() AS x, 1 AS y", id="view"),
        pytest.param(
            "CREATE TABLE source AS SELECT 1.0 AS x, 1 AS y; ALTER TABLE source ENABLE ROW LEVEL SECURITY;"
            " ALTER TABLE source FORCE ROW LEVEL SECURITY;"
            " CREATE POLICY all_of_them ON source USING (steal() > y)",
            id="policy",
        ),
        pytest.param(
            "CREATE TABLE source AS SELECT 1.0 AS x, 1 AS y; CREATE INDEX ON source ((steal() + y))",
            id="index expression, folded by the planner",
        ),
    ],
)
def test_code_that_becomes_another_submitter_is_refused(read_as_alice, statement):
    with pytest.raises(Forbidden, match='cannot set parameter "role" within security-definer function'):
        read_as_alice(statement)


def test_code_that_stays_itself_is_run(read_as_alice):
    rows = read_as_alice(
        "CREATE FUNCTION me() RETURNS text LANGUAGE sql STABLE AS $$ SELECT current_user::text $$;"
        " CREATE VIEW source AS SELECT 1.5::real AS x, me() AS y"
    )
    assert rows.values[0].tolist() == [1.5]
    assert rows.values[1][0] == b"alice"


def test_code_cannot_write(read_as_alice):
    with pytest.raises(BadData, match="cannot execute INSERT in a read-only transaction"):
        read_as_alice(
            "CREATE TABLE written (x int);"
            "CREATE FUNCTION write() RETURNS int LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO public.written VALUES (1); RETURN 1; END $$;"
            "CREATE VIEW source AS SELECT write() AS x, 1 AS y"
        )


def test_without_the_right_to_temporary_objects_it_is_said_what_to_grant(read_as_alice, site):
    database = site.value("SELECT current_database()")
    site.execute(f'REVOKE TEMPORARY ON DATABASE "{database}" FROM PUBLIC')
    with pytest.raises(Forbidden, match="temporary") as refused:
        read_as_alice("CREATE TABLE source AS SELECT 1.0 AS x, 1 AS y")
    assert "GRANT TEMPORARY ON DATABASE" in refused.value.hint


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("RAISE 'in maintenance windows alone'", "in maintenance"),
        ("INSERT INTO public.audit VALUES (1)", "audit"),
    ],
)
def test_an_event_trigger_that_keeps_rows_from_being_read_is_told_of(read_as_alice, site, body, said):
    site.execute(
        "CREATE TABLE audit (i int);"
        f"CREATE FUNCTION watch() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$;"
        "CREATE EVENT TRIGGER watch ON ddl_command_end WHEN TAG IN ('CREATE FUNCTION')"
        " EXECUTE FUNCTION watch()"
    )
    with pytest.raises(Forbidden, match=said) as refused:
        read_as_alice("CREATE TABLE source AS SELECT 1.0 AS x, 1 AS y")
    assert "event triggers" in refused.value.hint


def test_a_reading_that_sends_nothing_can_be_stopped(read_as_alice):
    asked = threading.Event()

    def check():
        if asked.is_set():
            raise JobCancelled("told to stop")

    threading.Timer(0.5, asked.set).start()
    began = time.monotonic()
    with pytest.raises(JobCancelled, match="told to stop"):
        read_as_alice("CREATE VIEW source AS SELECT 1.0 AS x, 1 AS y FROM pg_sleep(60)", check=check)
    assert time.monotonic() - began < 30
