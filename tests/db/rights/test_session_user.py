"""Sources that ask for session_user: for whoever reads them that is the worker's login."""

import psycopg
import pytest

from tensile_db.data.snapshot import read
from tensile_db.errors import Unsupported

_POLICY = "CREATE POLICY members ON guarded FOR SELECT USING (pg_has_role(session_user, owner, 'member'))"


def refused(source, connection, tmp_path, table):
    with pytest.raises(Unsupported) as refusal:
        read(connection, source(table), tmp_path / "rows")
    assert "current_user" in refusal.value.hint
    return refusal.value.message.partition(",")[0]


def rows_of(source, connection, tmp_path, table):
    _, rows = read(connection, source(table, features=["x"]), tmp_path / "rows")
    return sorted(rows.values[0].tolist())


def test_a_policy_that_asks_for_it_is_refused(source, site, connection, tmp_path):
    site.execute(_POLICY)
    said = refused(source, connection, tmp_path, "guarded")
    assert said == "the policy members of public.guarded asks for session_user"


@pytest.mark.parametrize("asks", ['owner = "session_user"()', "owner IN (SELECT login FROM mine)"])
def test_so_is_one_that_calls_it_as_a_function_or_reads_a_view_that_asks(
    source, site, connection, tmp_path, asks
):
    site.execute(
        "CREATE VIEW mine AS SELECT session_user AS login; GRANT SELECT ON mine TO alice;"
        f"CREATE POLICY members ON guarded FOR SELECT USING ({asks})"
    )
    assert refused(source, connection, tmp_path, "guarded").endswith("asks for session_user")


def test_a_table_that_is_reached_by_a_function_of_whoever_asks_counts(source, site, connection, tmp_path):
    site.execute(
        f"{_POLICY}; CREATE FUNCTION f() RETURNS TABLE (x real, y int) LANGUAGE sql"
        " AS 'SELECT x, y FROM guarded';"
        "CREATE VIEW hidden AS SELECT x, y FROM f(); ALTER VIEW hidden OWNER TO alice"
    )
    said = refused(source, connection, tmp_path, "hidden")
    assert said == "the policy members of public.guarded asks for session_user"


def test_a_table_that_a_view_of_whoever_asks_joins_to_one_of_its_owners_counts(
    source, site, connection, tmp_path
):
    site.execute(
        f"{_POLICY}; CREATE VIEW joined AS SELECT g.x, g.y FROM guarded g, halves LIMIT 9;"
        "ALTER VIEW joined OWNER TO alice"
    )
    assert refused(source, connection, tmp_path, "joined").startswith("the policy members")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER POLICY members ON guarded TO tensile_admin",
        "ALTER TABLE guarded DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE guarded OWNER TO alice",
        "DROP POLICY members ON guarded; CREATE POLICY m ON guarded FOR UPDATE USING (owner = session_user)",
    ],
)
def test_a_policy_that_does_not_concern_who_reads_is_not(source, site, connection, tmp_path, change):
    site.execute(f"{_POLICY}; {change}")
    assert rows_of(source, connection, tmp_path, "guarded")


@pytest.mark.parametrize("column", ["session_user::text", "(SELECT session_user::text)"])
def test_a_view_that_asks_for_it_is_refused_also_through_another(source, site, connection, tmp_path, column):
    site.execute(
        f"CREATE VIEW inner_one AS SELECT x, {column} AS label FROM parts;"
        "CREATE VIEW outer_one AS SELECT * FROM inner_one; GRANT SELECT ON outer_one TO alice"
    )
    said = refused(source, connection, tmp_path, "outer_one")
    assert said == "the view public.inner_one asks for session_user"


def test_names_and_texts_of_that_name_are_none(source, site, connection, tmp_path):
    site.execute(
        'CREATE VIEW named AS SELECT x, y AS "{SQLVALUEFUNCTION :op 12 ", current_user AS a, user AS b'
        " FROM parts WHERE 'SESSION_USER {SQLVALUEFUNCTION :op 12 ' <> current_user;"
        'ALTER VIEW named RENAME COLUMN "{SQLVALUEFUNCTION :op 12 " TO y; GRANT SELECT ON named TO alice'
    )
    assert rows_of(source, connection, tmp_path, "named") == list(range(10))


def test_a_tables_policy_concerns_a_views_readers_only_where_it_concerns_its_owner(
    source, site, connection, tmp_path
):
    site.execute(
        f"{_POLICY}; CREATE VIEW seen AS SELECT x, y FROM guarded; GRANT SELECT ON seen TO alice;"
        "REVOKE SELECT ON guarded FROM alice"
    )
    assert rows_of(source, connection, tmp_path, "seen") == list(range(1, 10))
    said = "the policy members of public.guarded asks for session_user"
    for change in ("OWNER TO bob", "OWNER TO alice"):
        site.execute(f"GRANT SELECT ON guarded TO bob, alice; ALTER VIEW seen {change}")
        assert refused(source, connection, tmp_path, "seen") == said


def test_a_view_read_as_whoever_asks_is_refused_for_its_tables_policy(source, site, connection, tmp_path):
    with psycopg.connect(site.admin) as admin:
        if admin.info.server_version < 15_00_00:
            pytest.skip("views are read as whoever asks since PostgreSQL 15")
    site.execute(
        f"{_POLICY}; CREATE VIEW seen WITH (security_invoker = on) AS SELECT x, y FROM guarded;"
        "GRANT SELECT ON seen TO alice"
    )
    assert refused(source, connection, tmp_path, "seen").startswith("the policy members")
