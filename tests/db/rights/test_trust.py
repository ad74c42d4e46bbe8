"""Who calls, who is told a secret, and whose connection it is: what nobody else may do in a role's name."""

import psycopg
import pytest

from tensile_db.catalog.install import install
from tests.fixtures.db import PUPPET_LOGIN
from tests.jobs.inserted_rows import add_model
from tests.played.told_postman import Postman, says

SUBMIT = "SELECT tensile_submit('vgg16', 'images_table')"

#: What runs as its owner for a caller: each by itself, with alice's job and model in the place of {}.
CALLS = (
    "tensile.request_cancel_visibly(tensile.sign(), {job})::text",
    "tensile.job_status_now(tensile.sign(), {job})::text",
    """tensile.insert_job_visibly(tensile.sign(), '{{"kind": "train", "source_oid": 1259}}')::text""",
    "tensile.delete_models(tensile.sign(), 'alice'::regrole::oid, 'digits', NULL)::text",
    "tensile.set_pinned(tensile.sign(), 'alice'::regrole::oid, 'digits', 1)::text",
    "tensile.delete_jobs(tensile.sign(), now(), NULL)::text",
    "tensile.delete_predictions(tensile.sign(), {job})::text",
    "tensile.delete_predictions_visibly(tensile.sign(), {job})::text",
    "tensile.request_serving_visibly(tensile.sign(), {model}, 'bytes', false, '')::text",
    "tensile.ask_serving_again_visibly(tensile.sign(), 1)::text",
    "tensile.serving_answer_now(tensile.sign(), 1)::text",
    "tensile.delete_serving_request(tensile.sign(), 1)::text",
    "tensile.delete_serving_request_visibly(tensile.sign(), 1)::text",
    "tensile.forget_serving(tensile.sign(), 1, now())::text",
    "tensile.forget_serving_visibly(tensile.sign())::text",
    "tensile.has_worker_now(tensile.sign())::text",
)


@pytest.fixture
def calls(site):
    """CALLS of a job and a model of alice's, in functions of bob's; said: what they were answered."""
    job, model = site.value(SUBMIT, role="alice"), add_model(site)
    site.execute("GRANT CREATE ON SCHEMA public TO bob")
    site.execute("CREATE TABLE said (place integer, answer text, sqlstate text)", role="bob")
    site.execute("GRANT INSERT, SELECT ON said TO PUBLIC", role="bob")
    told = []
    for place, call in enumerate(CALLS):
        site.execute(
            f"CREATE FUNCTION call_{place}() RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
            f" INSERT INTO public.said VALUES ({place}, {call.format(job=job, model=model)});"
            f" EXCEPTION WHEN OTHERS THEN"
            f" INSERT INTO public.said VALUES ({place}, SQLERRM, SQLSTATE); END $$",
            role="bob",
        )
        told.append(f"PERFORM public.call_{place}();")
    site.execute(
        f"CREATE FUNCTION call_all() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {' '.join(told)} END $$",
        role="bob",
    )
    yield job
    assert site.job(job)["state"] == "queued"
    assert site.execute("SELECT pinned FROM tensile.models") == [{"pinned": False}]
    assert site.value("SELECT count(*) FROM tensile.jobs WHERE owner <> 'bob'") == 1
    assert site.value("SELECT count(*) FROM tensile.serving_requests") == 0


def said(site):
    return site.execute("SELECT * FROM said ORDER BY place")


def test_what_the_server_runs_for_an_index_is_done_in_its_owners_name_by_nobody(site, calls):
    for statement in (
        "CREATE TABLE bait (i integer); INSERT INTO bait VALUES (1)",
        """
        CREATE FUNCTION trap(i integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE
        AS $$ BEGIN PERFORM public.call_all(); RETURN i; END $$
        """,
        "CREATE INDEX ON bait (trap(i))",
        "TRUNCATE said",
    ):
        site.execute(statement, role="bob")
    site.execute("ANALYZE bait")
    answers = said(site)
    assert [row["place"] for row in answers] == list(range(len(CALLS)))
    assert {row["sqlstate"] for row in answers} == {"42501"}
    assert answers[0]["answer"] == (
        'role "postgres" cannot do that while it acts as role "bob",'
        " in a SECURITY DEFINER function, an index or a materialized view of that role"
    )


def test_nor_what_a_function_does_as_its_definer(site, calls):
    site.execute("ALTER FUNCTION call_all() SECURITY DEFINER")
    for caller in ("alice", "carol", "postgres"):
        site.execute("TRUNCATE said")
        site.execute("SELECT call_all()", role=caller)
        assert {row["sqlstate"] for row in said(site)} == {"42501"}
        assert len(said(site)) == len(CALLS)


def test_a_signature_is_good_for_one_call_of_the_session_that_made_it(site):
    job = site.value(SUBMIT, role="alice")
    status = "SELECT tensile.job_status_now(%s, %s) -> 'state' AS state"
    with site.connect("alice") as alice, site.connect("alice") as another:
        (signature,) = alice.execute("SELECT tensile.sign() AS s").fetchone().values()
        for session, given in ((another, signature), (alice, "0" * 32)):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the call is not signed"):
                session.execute(status, [given, job])
        (signature,) = alice.execute("SELECT tensile.sign() AS s").fetchone().values()
        assert alice.execute(status, [signature, job]).fetchone() == {"state": "queued"}
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the call is not signed"):
            alice.execute(status, [signature, job])


def test_a_signature_is_of_the_role_that_signed_and_not_of_the_next(site):
    job = site.value(SUBMIT, role="alice")
    with site.connect("postgres") as session:
        session.execute("SET ROLE bob")
        (signature,) = session.execute("SELECT tensile.sign() AS s").fetchone().values()
        session.execute("SET ROLE alice")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match='acts as role "bob"'):
            session.execute("SELECT tensile.request_cancel_visibly(%s, %s)", [signature, job])
    assert site.job(job)["state"] == "queued"


def test_a_call_that_is_cancelled_leaves_no_connection_to_a_role_that_may_speak_to_it(site):
    site.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tensile TO alice")
    cancelled = 0
    with site.connect("alice") as alice:
        for attempt in range(60):
            alice.execute(f"SET statement_timeout = {1 + attempt % 12}")
            for call in ("job_status_now(tensile.sign(), 0)", "has_worker_now(tensile.sign())"):
                try:
                    alice.execute(f"SELECT tensile.{call}")
                except psycopg.errors.QueryCanceled:
                    cancelled += 1
                alice.execute("SET statement_timeout = 0")
                names = alice.execute("SELECT tensile.dblink_get_connections() AS names").fetchone()
                assert names == {"names": None}
                alice.execute(f"SET statement_timeout = {1 + attempt % 12}")
    assert cancelled > 10


def reach_itself_by_a_password(site):
    way = psycopg.conninfo.make_conninfo(site.admin, password="TopSecret42", dbname="")
    site.execute("INSERT INTO tensile.settings VALUES ('loopback', %s)", way)


@pytest.mark.parametrize("shown", ["debug_print_parse", "debug_print_rewritten", "debug_print_plan"])
def test_the_way_of_the_loopback_is_printed_to_nobody(site, shown):
    reach_itself_by_a_password(site)
    # As a Const is printed.
    secret = " ".join(str(ord(letter)) for letter in "TopSecret42")
    printed = []
    with site.connect("alice") as alice:
        alice.add_notice_handler(lambda notice: printed.append(notice.message_detail or ""))
        alice.execute(f"SET client_min_messages = log; SET {shown} = on")
        ask = "SELECT tensile.job_status_now(tensile.sign(), 0)"
        alice.execute(ask)
        assert printed
        assert not any(secret in text or "TopSecret42" in text for text in printed)


def test_what_the_servers_log_explains_is_told_to_nobody(site):
    name = site.value("SELECT current_database()")
    for setting in (
        "session_preload_libraries = 'auto_explain'",
        "auto_explain.log_min_duration = 0",
        "auto_explain.log_nested_statements = on",
        "auto_explain.log_verbose = on",
    ):
        site.execute(f'ALTER DATABASE "{name}" SET {setting}')
    reach_itself_by_a_password(site)
    printed = []
    with site.connect("alice") as alice:
        alice.add_notice_handler(lambda notice: printed.append(notice.message_primary or ""))
        alice.execute("SET client_min_messages = log")
        for call in ("job_status_now(tensile.sign(), 0)", "has_worker_now(tensile.sign())"):
            alice.execute(f"SELECT tensile.{call}")
        assert any("tensile.sign()" in text for text in printed), "nothing is explained"
        # The latter is how the name of a kept connection begins.
        assert not any("TopSecret42" in text or "tensile_db " in text for text in printed)


@pytest.mark.usefixtures("site_template")
def test_who_owns_dblinks_schema_cannot_put_another_in_its_place(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as superuser:
        superuser.execute("CREATE SCHEMA tools AUTHORIZATION alice; CREATE EXTENSION dblink SCHEMA tools")
        install(empty_database)
        superuser.execute("SELECT tensile_grant_usage('alice')")
        (name,) = superuser.execute("SELECT current_database()").fetchone()
        superuser.execute(f'GRANT CREATE ON DATABASE "{name}" TO alice')
    dsn = psycopg.conninfo.make_conninfo(empty_database, user="alice")
    with psycopg.connect(dsn) as reading, psycopg.connect(dsn, autocommit=True) as alice:
        reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reading.execute("SELECT 1")
        alice.execute(
            "ALTER SCHEMA tools RENAME TO elsewhere; CREATE SCHEMA tools;"
            "CREATE FUNCTION tools.dblink(text, text) RETURNS SETOF record LANGUAGE plpgsql"
            " AS $$ BEGIN RAISE 'called as %', current_user; END $$"
        )
        asked = reading.execute("SELECT tensile.job_status_now(tensile.sign(), 0)").fetchone()
        assert asked == (None,)


def test_no_connection_is_kept_or_used_where_any_role_may_call_dblink(site):
    """Code of any role may come to run in a session, as its definer, or in an index that is analyzed."""
    add_model(site)
    site.execute("GRANT CREATE ON SCHEMA public TO bob")
    ask = "SELECT tensile_predict('digits', '\\x00'::bytea) AS p"
    site.execute(
        "CREATE FUNCTION names() RETURNS text[] LANGUAGE sql SECURITY DEFINER"
        " AS $$ SELECT tensile.link_names() $$;"
        "CREATE FUNCTION plant(name text, way text) RETURNS text LANGUAGE sql SECURITY DEFINER"
        " AS $$ SELECT tensile.link_open(name, way) $$"
    )
    with Postman(site, says("odd")), site.connect("alice") as alice:
        assert alice.execute(ask).fetchone() == {"p": "odd"}
        assert len(alice.execute("SELECT names() AS n").fetchone()["n"]) == 1
        site.execute("GRANT EXECUTE ON FUNCTION tensile.dblink_exec(text, text) TO bob")
        # The next closes what was kept before.
        assert alice.execute(ask).fetchone() == {"p": "odd"}
        assert alice.execute("SELECT names() AS n").fetchone() == {"n": None}
        # Nor is one taken for ours that another role has opened.
        name = f"tensile_db {site.value('SELECT oid FROM pg_roles WHERE rolname = %s', 'alice')} x"
        alice.execute("SELECT plant(%s, %s)", [name, site.dsn("bob")])
        assert alice.execute(ask).fetchone() == {"p": "odd"}
        assert alice.execute("SELECT names() AS n").fetchone() == {"n": None}


@pytest.mark.parametrize(
    "given",
    [
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tensile TO bob",
        """
        ALTER DEFAULT PRIVILEGES IN SCHEMA tensile GRANT EXECUTE ON FUNCTIONS TO bob;
        DROP FUNCTION tensile.as_caller(text, text)
        """,
        "GRANT ALL ON SCHEMA tensile TO bob WITH GRANT OPTION",
        "GRANT ALL ON ALL TABLES IN SCHEMA tensile TO bob",
        "GRANT REFERENCES (id), UPDATE (owner) ON tensile.models TO bob",
        "GRANT TRIGGER ON tensile.jobs TO PUBLIC",
    ],
)
def test_an_install_takes_back_what_anybody_was_given_but_to_look(site, given):
    rights = (
        "SELECT has_function_privilege('bob', p.oid, 'EXECUTE') AS has, p.oid::regprocedure::text AS of"
        " FROM pg_proc p WHERE p.pronamespace = 'tensile'::regnamespace AND p.proname !~ 'dblink'"
        " UNION ALL SELECT has_schema_privilege('bob', 'tensile', 'CREATE'), 'schema'"
        " UNION ALL SELECT has_table_privilege('bob', c.oid, 'TRIGGER, REFERENCES, TRUNCATE'), c.relname"
        " FROM pg_class c WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind IN ('r', 'v')"
        " UNION ALL SELECT has_any_column_privilege('bob', 'tensile.models', 'REFERENCES, UPDATE'), 'column'"
        " ORDER BY 2"
    )
    before = site.execute(rights)
    site.execute(given)
    site.execute("GRANT SELECT ON tensile.quota_locks TO bob")
    install(site.admin)
    assert site.execute(rights) == before
    assert site.value("SELECT has_table_privilege('bob', 'tensile.quota_locks', 'SELECT')") is True


def test_a_worker_is_told_all_settings_but_that(site):
    site.execute("INSERT INTO tensile.settings VALUES ('loopback', 'password=secret')")
    names = "SELECT array_agg(name ORDER BY name) FROM tensile.settings"
    assert site.value(names, role=PUPPET_LOGIN) == ["contents", "udf_digest", "version"]


def test_the_doctor_tells_of_a_function_that_a_call_may_mean_instead_of_ours(site):
    site.execute("GRANT CREATE ON SCHEMA public TO bob")
    made = "CREATE FUNCTION public.{} RETURNS integer LANGUAGE sql AS 'SELECT 1'"
    told = """SELECT status, found FROM tensile_doctor() WHERE "check" = 'functions'"""
    site.execute(made.format("tensile_of_bobs(job bigint)"), role="bob")
    assert site.execute(told, role="alice") == []
    site.execute(made.format("tensile_wait(job integer)"), role="bob")
    (row,) = site.execute(told, role="alice")
    assert row["status"] == "warning"
    assert row["found"].startswith("public.tensile_wait(integer) of the role bob")


def test_a_session_without_row_security_for_its_dumps_uses_everything_all_the_same(site):
    add_model(site)
    with site.connect("alice") as alice, Postman(site, says("odd")):
        alice.execute("SET row_security = off")
        assert [row["model"] for row in alice.execute("SELECT * FROM tensile_models()")] == ["digits"]
        (job,) = alice.execute(SUBMIT).fetchone().values()
        assert site.job(job)["owner"] == "alice"
        predicted = alice.execute("SELECT tensile_predict('digits', '\\x00'::bytea) AS p").fetchone()
        assert predicted == {"p": "odd"}
        checks = 'SELECT "check", status FROM tensile_doctor()'
        without = alice.execute(checks).fetchall()
        alice.execute("SET row_security = on")
        assert without == alice.execute(checks).fetchall()


def test_what_the_database_sets_for_its_sessions_hinders_no_job(site):
    site.execute("SELECT tensile_set_quota('alice', 3)")
    name = site.value("SELECT current_database()")
    for setting in ("default_transaction_isolation = 'serializable'", "row_security = off"):
        site.execute(f'ALTER DATABASE "{name}" SET {setting}')
        with site.connect("alice") as alice:
            alice.execute("SET default_transaction_isolation = 'read committed'")
            request = """{"kind": "train", "source_name": "t", "source_oid": 1259}"""
            alice.execute("SET row_security = on")
            (job,) = (
                alice.execute("SELECT tensile.insert_job_visibly(tensile.sign(), %s) AS job", [request])
                .fetchone()
                .values()
            )
        assert site.job(job)["owner"] == "alice"
