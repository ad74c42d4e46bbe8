"""Sessions that wait for a row's prediction: isolation, what ends the waiting, what is left behind."""

import threading

import psycopg
import pytest

from tests.fixtures.db import PUPPET_LOGIN
from tests.jobs.inserted_rows import add_model
from tests.patience import wait_until
from tests.played.told_postman import Postman, says, served, waiting_session


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_row_is_predicted_at_every_isolation_level_and_in_a_read_only_transaction(site, level):
    add_model(site)
    with Postman(site, says("odd")), site.connect("alice", autocommit=False) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}, READ ONLY")
        row = connection.execute("SELECT tensile_predict('digits', '\\x00'::bytea) AS p").fetchone()
    assert row == {"p": "odd"}


def test_predictions_of_a_view_are_made_only_where_they_are_looked_at(site):
    add_model(site)
    site.execute(
        "CREATE VIEW predicted AS SELECT id, tensile_predict('digits', image) AS p FROM images_table"
    )
    site.execute("GRANT SELECT ON predicted TO alice")
    with Postman(site, says("odd")) as postman:
        assert site.value("SELECT count(*) FROM predicted", role="alice") == 9
        assert postman.seen == []
        assert site.value("SELECT p FROM predicted WHERE id = 3", role="alice") == "odd"
    assert len(postman.seen) == 1


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_ctrl_c_and_statement_timeout_take_the_request_away(site, how):
    add_model(site)
    with Postman(site, lambda request: None) as postman, site.connect("alice") as connection:
        # Python is loaded and the session's connection open: the rest takes milliseconds.
        connection.execute("SELECT tensile.has_worker_now(tensile.sign())")
        if how == "timeout":
            connection.execute("SET statement_timeout = '1s'")
        else:
            threading.Thread(
                target=lambda: (wait_until(lambda: postman.seen), connection.cancel_safe())
            ).start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT tensile_predict('digits', '\\x00'::bytea)")
        assert len(postman.seen) == 1
        assert site.value("SELECT count(*) FROM tensile.serving_requests") == 0


def test_a_request_that_waits_is_told_of_again_and_its_job_begun_again(site):
    add_model(site)
    ask = "SELECT tensile_predict('digits', '\\x00'::bytea)"
    with (
        Postman(site, lambda request: None) as postman,
        site.connect(PUPPET_LOGIN) as listener,
        waiting_session(site, ask) as outcome,
    ):
        listener.execute("LISTEN tensile_serving")
        wait_until(lambda: postman.seen)
        # It ended just before the row came.
        site.execute("UPDATE tensile.jobs SET state = 'succeeded', finished_at = now()")
        wait_until(lambda: len(served(site)) == 2)
        request = postman.seen[0]
        (told,) = {note.payload for note in listener.notifies(timeout=0)}
        assert told == f"{request['id']} {request['model_id']}"
        site.execute("UPDATE tensile.serving_requests SET answered = true, prediction = 'odd'")
    assert outcome["rows"] == [{"tensile_predict": "odd"}]
    assert [job["state"] for job in served(site)] == ["succeeded", "queued"]


@pytest.mark.parametrize(
    ("end", "sqlstate", "message"),
    [
        (
            "UPDATE tensile.jobs SET state = 'failed', error_sqlstate = '53200', error_message = 'too large'",
            "53200",
            "too large",
        ),
        ("UPDATE tensile.jobs SET cancel_requested = true", "57014", "job {job} was cancelled"),
        ("DELETE FROM tensile.models", "42704", 'the model "digits" is no more'),
        ("DELETE FROM tensile.serving_requests", "42704", None),
    ],
)
def test_whatever_ends_the_serving_of_a_model_is_told_to_those_who_wait(site, end, sqlstate, message):
    add_model(site)
    ask = "SELECT tensile_predict('digits', '\\x00'::bytea)"
    with (
        Postman(site, lambda request: None) as postman,
        waiting_session(site, ask) as first,
        waiting_session(site, ask) as second,
    ):
        wait_until(lambda: len(postman.seen) == 2)
        # Both may have begun one, of which one took the place: numbers are not given back.
        (job,) = served(site)
        site.execute(end)
    for outcome in (first, second):
        assert outcome["error"].sqlstate == sqlstate
        assert message is None or outcome["error"].diag.message_primary == message.format(job=job["id"])


def test_a_model_dropped_just_before_its_row_is_asked_for_is_no_more(site):
    add_model(site)
    waits = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'tensile.serving_requests'::regclass"
    ask = "SELECT tensile_predict('digits', '\\x00'::bytea)"
    with Postman(site, says("odd")), site.connect("postgres", autocommit=False) as admin:
        admin.execute("LOCK TABLE tensile.serving_requests IN SHARE MODE")
        with waiting_session(site, ask) as outcome:
            wait_until(lambda: site.execute(waits))
            admin.execute("DELETE FROM tensile.models")
            admin.commit()
    assert outcome["error"].sqlstate == "42704"
    assert outcome["error"].diag.message_primary == 'the model "digits" is no more'


def test_dropping_a_model_ends_its_job(site):
    add_model(site)
    with Postman(site, says("odd")):
        site.value("SELECT tensile_predict('digits', '\\x00'::bytea)", role="alice")
    assert site.value("SELECT tensile_drop_model('digits')", role="alice") == 1
    assert [job["state"] for job in served(site)] == ["cancelled"]


def test_a_role_without_device_time_left_is_served_no_more(site):
    add_model(site)
    with Postman(site, says("odd")):
        site.value("SELECT tensile_predict('digits', '\\x00'::bytea)", role="alice")
        site.execute("SELECT tensile_set_quota('alice', max_device_seconds => 0)")
        assert site.value("SELECT tensile.pause_over_quota()") == 1
        assert [job["state"] for job in served(site)] == ["cancelled"]
        assert site.refusal("SELECT tensile_predict('digits', '\\x00'::bytea)")[0] == "53400"
    site.execute("SELECT tensile_set_quota('alice')")


def test_requests_of_sessions_that_are_gone_are_taken_away(site):
    add_model(site)
    with Postman(site, lambda request: None) as postman, site.connect("alice") as connection:
        pid = connection.info.backend_pid

        def ask():
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT tensile_predict('digits', '\\x00'::bytea)")

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: postman.seen)
        assert site.value("SELECT tensile.delete_abandoned_requests()") == 0
        site.execute("SELECT pg_terminate_backend(%s)", pid)
        thread.join()
        wait_until(lambda: not site.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid))
        site.execute("SELECT tensile.delete_abandoned_requests()")
        assert site.value("SELECT count(*) FROM tensile.serving_requests") == 0


def connections_of(site, connection):
    names = "SELECT unnest(tensile.dblink_get_connections()) AS name"
    return [row["name"] for row in connection.execute(names).fetchall()]


def test_a_session_keeps_one_connection_which_follows_its_role_and_comes_again_when_it_is_ended(site):
    add_model(site)
    add_model(site, owner="bob")
    ask = "SELECT tensile_predict('digits', '\\x00'::bytea)"
    with Postman(site, says("odd")) as postman, site.connect("postgres") as connection:
        for role in ("alice", "alice", "bob"):
            connection.execute(f"SET ROLE {role}")
            connection.execute(ask)
            connection.execute("RESET ROLE")
            oid = site.value("SELECT oid FROM pg_roles WHERE rolname = %s", role)
            (name,) = connections_of(site, connection)
            assert name.startswith(f"tensile_db {oid} ")
        site.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'tensile_db' AND datname = current_database()"
        )
        connection.execute("SET ROLE bob")
        connection.execute(ask)
    asked_by = [
        site.value("SELECT rolname FROM pg_roles WHERE oid = %s", request["requested_by"])
        for request in postman.seen
    ]
    assert asked_by == ["alice", "alice", "bob", "bob"]


def test_no_connection_is_kept_where_the_session_could_speak_to_it(site):
    """Through it, whoever can call dblink could become the superuser that opened it."""
    add_model(site)
    ask = "SELECT tensile_predict('digits', '\\x00'::bytea)"
    kept = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tensile_db'"
        " AND datname = current_database()"
    )
    with Postman(site, says("odd")):
        with site.connect("alice") as connection:
            connection.execute(ask)
            assert site.value(kept) == 1
        wait_until(lambda: site.value(kept) == 0)
        site.execute("GRANT EXECUTE ON FUNCTION tensile.dblink_exec(text, text) TO alice")
        with site.connect("alice") as connection:
            connection.execute(ask)
            wait_until(lambda: site.value(kept) == 0)


def test_a_row_is_not_predicted_inside_another_roles_security_definer_function(site):
    add_model(site)
    site.execute(
        "CREATE FUNCTION public.theirs() RETURNS text LANGUAGE sql SECURITY DEFINER"
        " AS $$ SELECT tensile_predict('digits', '\\x00'::bytea) $$;"
        "ALTER FUNCTION public.theirs() OWNER TO alice"
    )
    assert site.refusal("SELECT theirs()", role="bob")[0] == "42501"
