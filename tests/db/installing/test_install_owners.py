"""What an install takes over nothing of: what others have made in the place of ours, or may do with it."""

import psycopg
import pytest

from tensile_db.catalog.install import install
from tensile_db.errors import Forbidden, InvalidRequest

#: Makes the cluster's roles.
pytestmark = pytest.mark.usefixtures("site_template")


def test_a_schema_that_somebody_else_has_made_is_refused(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA tensile AUTHORIZATION alice")
        with pytest.raises(Forbidden, match='schema tensile belongs to the role "alice"') as refusal:
            install(empty_database)
        assert refusal.value.hint.startswith("If tensile_db has nothing to do with it: DROP SCHEMA tensile.")
        connection.execute("DROP SCHEMA tensile")
    install(empty_database)


@pytest.mark.parametrize(
    ("theirs", "called"),
    [
        (
            "FUNCTION public.tensile_cancel(job_id bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
            "function public.tensile_cancel(job_id bigint)",
        ),
        # Not one that could be replaced.
        (
            "FUNCTION public.tensile_cancel(job_id bigint) RETURNS text LANGUAGE sql AS 'SELECT 1'",
            "function public.tensile_cancel(job_id bigint)",
        ),
        (
            "FUNCTION tensile.format_nbytes(nbytes numeric) RETURNS text LANGUAGE sql AS 'SELECT $1::text'",
            "function tensile.format_nbytes(nbytes numeric)",
        ),
        ("TABLE tensile.theirs ()", "relation tensile.theirs"),
        ("VIEW tensile.theirs AS SELECT 1", "relation tensile.theirs"),
        ("TYPE tensile.theirs AS ENUM ()", "type tensile.theirs"),
        ("TYPE tensile.theirs AS (i int)", "type tensile.theirs"),
    ],
)
def test_what_somebody_else_has_made_in_our_place_is_refused(empty_database, theirs, called):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA tensile; GRANT CREATE ON SCHEMA public, tensile TO alice")
        connection.execute(f"SET ROLE alice; CREATE {theirs}; RESET ROLE")
        with pytest.raises(Forbidden, match='belongs to the role "alice"') as refusal:
            install(empty_database)
        assert refusal.value.message.startswith(f"the {called}")
        connection.execute(refusal.value.hint.partition(": ")[2].partition(". If")[0])
    install(empty_database)


@pytest.mark.parametrize("put", ["a trigger", "a foreign key"])
def test_what_somebody_else_has_put_on_a_table_of_ours_is_refused(site, put):
    site.execute(
        "GRANT CREATE ON SCHEMA public TO alice; GRANT TRIGGER, REFERENCES ON tensile.models TO alice"
    )
    if put == "a trigger":
        site.execute(
            "CREATE FUNCTION public.theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END';"
            "CREATE TRIGGER theirs AFTER DELETE ON tensile.models EXECUTE FUNCTION public.theirs()",
            role="alice",
        )
        called = "the function of the trigger theirs on tensile.models belongs"
    else:
        site.execute(
            "CREATE TABLE public.theirs (m bigint REFERENCES tensile.models ON DELETE CASCADE)", role="alice"
        )
        called = "the table public.theirs, which refers to tensile.models, belongs"
    with pytest.raises(Forbidden) as refusal:
        install(site.admin)
    assert refusal.value.message.startswith(called)
    site.execute(refusal.value.hint.partition(": ")[2].partition(". If")[0])
    install(site.admin)
    rights = "SELECT has_table_privilege('alice', 'tensile.models', 'TRIGGER, REFERENCES, DELETE')"
    assert site.value(rights) is False


def test_what_an_older_version_ran_as_its_owner_does_so_no_more_even_where_somebody_depends_on_it(site):
    for name in ("has_worker_now", "forget_serving_visibly"):
        site.execute(
            f"CREATE FUNCTION tensile.{name}() RETURNS text LANGUAGE sql SECURITY DEFINER"
            " AS 'SELECT current_user::text'"
        )
    site.execute("GRANT EXECUTE ON FUNCTION tensile.has_worker_now() TO alice")
    site.execute("GRANT CREATE ON SCHEMA public TO alice")
    site.execute("CREATE VIEW hers AS SELECT tensile.has_worker_now()", role="alice")
    install(site.admin)
    left = (
        "SELECT proname, prosecdef FROM pg_proc WHERE proname IN ('has_worker_now', 'forget_serving_visibly')"
    )
    assert site.execute(left + " AND pronargs = 0") == [{"proname": "has_worker_now", "prosecdef": False}]


def test_a_connection_string_that_none_can_read_is_refused_and_not_kept(site):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        install(site.admin, loopback="host=/tmp password=two words")
    assert site.value("SELECT count(*) FROM tensile.settings WHERE name = 'loopback'") == 0
