"""One row's prediction, as the session sees it: forms, rights, refusals, and what is left behind."""

import threading
import time
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from tests.db.test_models import add_model
from tests.fix_db import PUPPET_LOGIN

FORMS = (
    ("image", "bytes"),
    ("ARRAY[1.5, 2]", "array"),
    ("ARRAY[1, 2]", "array"),
    ("ARRAY[1, 2]::smallint[]", "array"),
    ("ARRAY[1, 2]::bigint[]", "array"),
    ("ARRAY[1, 2]::real[]", "array"),
    ("ARRAY[true, false]", "array"),
    ("'{1, 2}'::float8[]", "array"),
    ("""'{"image": 1}'::jsonb""", "object"),
    ("images_table", "object"),
    ("ROW(1, 2)", "object"),
    ("features => image", "bytes"),
)


class Postman:
    """Answers requests as a worker does, in a thread.

    answer: from a request's row to columns of its answer; None: leave it unanswered.
    """

    def __init__(self, site, answer):
        self.seen = []
        self._answer = answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.connection = site.connect(PUPPET_LOGIN)
        self.connection.execute(
            "INSERT INTO tensile.workers (login, host, pid, device_name, version, state)"
            " VALUES (current_user, 'here', 1, 'puppet', '0', 'ready')"
        )

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        self._thread.join()
        self.connection.close()

    def _run(self):
        while not self._stop.is_set():
            waiting = "SELECT * FROM tensile.serving_requests WHERE NOT answered AND id <> ALL (%s)"
            done = [request["id"] for request in self.seen]
            for request in self.connection.execute(waiting, [done]).fetchall():
                self.seen.append(request)
                answer = self._answer(request)
                if answer is not None:
                    columns = sql.SQL(", ").join(
                        sql.SQL("{} = %s").format(sql.Identifier(name)) for name in answer
                    )
                    self.connection.execute(
                        sql.SQL(
                            "UPDATE tensile.serving_requests SET answered = true, {} WHERE id = %s"
                        ).format(columns),
                        [*answer.values(), request["id"]],
                    )
            time.sleep(0.005)


def says(text):
    return lambda request: {"prediction": text}


def served(site):
    return site.execute("SELECT * FROM tensile.jobs WHERE kind = 'serve' ORDER BY id")


@contextmanager
def waiting_session(site, statement, role="alice"):
    """Run a statement in another session; give what becomes of it, to be joined."""
    outcome = {}

    def run():
        with site.connect(role) as connection:
            try:
                outcome["rows"] = connection.execute(statement).fetchall()
            except psycopg.Error as error:
                outcome["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    yield outcome
    thread.join(60)
    assert not thread.is_alive()


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("schema", ["", "tensile."])
def test_every_form_of_a_row_is_told_apart_from_a_table(site, schema):
    add_model(site)
    with Postman(site, says("odd")) as postman:
        for features, form in FORMS:
            statement = f"SELECT {schema}tensile_predict('digits', {features}) AS p FROM images_table LIMIT 1"
            assert site.execute(statement, role="alice") == [{"p": "odd"}], features
            assert postman.seen[-1]["form"] == form
            assert not postman.seen[-1]["wants_probabilities"]


def test_a_literal_a_regclass_and_a_text_mean_a_table(site):
    add_model(site)
    site.execute("CREATE TABLE names AS SELECT 'images_table'::text AS t")
    site.execute("GRANT SELECT ON names TO alice")
    asked = "SELECT * FROM tensile_predict('digits', {})"
    with Postman(site, says("odd")) as postman:
        for source in ("'images_table'", "'images_table'::regclass", "source => 'images_table'", "'names'"):
            state, message, _ = site.refusal("SET statement_timeout = '1s'; " + asked.format(source))
            assert state in ("57014", "42703"), message
        assert postman.seen == []
    assert {job["kind"] for job in site.execute("SELECT kind FROM tensile.jobs")} == {"predict"}


def test_null_features_give_null_without_asking_anybody(site):
    add_model(site)
    for kind in ("bytea", "float8[]", "boolean[]", "jsonb"):
        (row,) = site.execute(
            f"SELECT tensile_predict('digits', NULL::{kind}) AS a,"
            f" tensile_probabilities('digits', NULL::{kind}) AS b",
            role="alice",
        )
        assert row == {"a": None, "b": None}
    (row,) = site.execute(
        "SELECT tensile_predict('digits', i) AS p FROM points LEFT JOIN images_table i ON false",
        role="alice",
    )
    assert row == {"p": None}
    assert served(site) == []


def test_a_row_carries_the_models_columns_alone(site):
    add_model(site)
    with Postman(site, says("odd")) as postman:
        site.execute("SELECT tensile_predict('digits', images_table) FROM images_table LIMIT 1", role="alice")
    assert bytes(postman.seen[0]["features"]) == rb'{"image": "\\x00"}'


def test_probabilities_are_asked_for_and_come_as_an_object(site):
    add_model(site)

    def answer(request):
        assert request["wants_probabilities"]
        return {"prediction": "odd", "probabilities": psycopg.types.json.Jsonb({"odd": 0.75, "even": 0.25})}

    with Postman(site, answer):
        (row,) = site.execute(
            "SELECT tensile_probabilities('digits', image) AS p FROM images_table LIMIT 1", role="alice"
        )
    assert row == {"p": {"odd": 0.75, "even": 0.25}}


def test_the_first_row_begins_one_job_of_the_models_owner_which_takes_no_quota(site):
    add_model(site)
    site.execute("SELECT tensile_set_quota('alice', max_concurrent_jobs => 0)")
    ask = "SELECT tensile_predict('digits', image) FROM images_table"
    with Postman(site, says("odd")) as postman:
        # An administrator uses it first, then its owner, several at once.
        for role in ("carol", "alice", "alice"):
            with waiting_session(site, ask, role), waiting_session(site, ask, "alice"):
                pass
    (job,) = served(site)
    assert (job["owner"], job["model"], job["state"]) == ("alice", "digits", "queued")
    assert len(postman.seen) == 6 * 9
    assert site.value("SELECT count(*) FROM tensile.serving_requests") == 0
    site.execute("SELECT tensile_set_quota('alice')")


def test_the_model_of_another_role_is_as_if_it_were_not_there_for_a_row_too(site):
    model = add_model(site, owner="bob")
    ask = "SELECT tensile_predict('digits', '\\x00'::bytea)"
    with Postman(site, says("odd")) as postman:
        assert site.refusal(ask)[:2] == ("42704", 'no model "digits"')
        # Nor by the functions and tables beneath.
        for beneath in (
            f"SELECT tensile.request_serving_visibly({model}, 'bytes', false, '')",
            (
                "INSERT INTO tensile.serving_requests (model_id, requested_by, client_pid, client_started_at,"
                f" form, wants_probabilities, features) SELECT {model}, oid, 1, now(), 'bytes', false, ''"
                " FROM pg_roles WHERE rolname = current_user"
            ),
        ):
            assert site.refusal(beneath)[0] == "42501"
        assert site.refusal(ask, role="mallory")[0] == "42501"
        assert site.value(ask, role="bob") == "odd"
    assert len(postman.seen) == 1
    assert len(served(site)) == 1


def test_a_role_sees_and_touches_no_requests_but_its_own(site):
    add_model(site)
    ask = "SELECT tensile_predict('digits', '\\x00'::bytea)"
    with Postman(site, lambda request: None) as postman, waiting_session(site, ask) as outcome:
        wait_for(lambda: postman.seen)
        for role in ("bob", "carol"):
            assert site.execute("SELECT * FROM tensile.serving_requests", role=role) == []
            assert site.value("SELECT tensile.delete_serving_request(1)", role=role) is False
            assert site.value("SELECT tensile.ask_serving_again(1)", role=role) is False
        assert site.refusal("UPDATE tensile.serving_requests SET answered = true")[0] == "42501"
        assert site.refusal("SELECT tensile.over_serving_connection('SELECT 1')")[0] == "42501"
        assert site.refusal("SELECT tensile.connect_as_caller('x')")[0] == "42501"
        site.execute("UPDATE tensile.serving_requests SET answered = true, prediction = 'odd'")
    assert outcome["rows"] == [{"tensile_predict": "odd"}]


def test_a_rows_error_comes_with_its_sqlstate_and_hint_and_ends_no_session(site):
    add_model(site)

    def refuse(request):
        return {"error_sqlstate": "22P03", "error_message": "is a damaged image", "error_hint": "Mend it."}

    with Postman(site, refuse), site.connect("alice") as connection:
        for _ in range(2):
            with pytest.raises(psycopg.Error) as caught:
                connection.execute("SELECT tensile_predict('digits', '\\x00'::bytea)")
            assert caught.value.sqlstate == "22P03"
            assert caught.value.diag.message_primary == "is a damaged image"
            assert caught.value.diag.message_hint == "Mend it."
    assert site.value("SELECT count(*) FROM tensile.serving_requests") == 0


def test_without_a_worker_a_row_is_refused_and_no_job_begun(site):
    add_model(site)
    assert site.refusal("SELECT tensile_predict('digits', '\\x00'::bytea)") == (
        "55000",
        "no worker is running",
        "Start one: tensile-db worker --dsn ...",
    )
    assert served(site) == []


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        ("tensile_predict('digit', '\\x00'::bytea)", ("42704", 'no model "digit"', 'Did you mean "digits"?')),
        (
            "tensile_predict('digits', '\\x00'::bytea, version => 3)",
            ("42704", 'model "digits" has no version 3', "It has: 1."),
        ),
        (
            "tensile_predict(NULL, '\\x00'::bytea)",
            ("22023", "the model is NULL", "tensile_models() lists yours."),
        ),
    ],
)
def test_a_model_that_is_not_there_is_refused_for_a_row(site, call, refusal):
    add_model(site)
    assert site.refusal(f"SELECT {call}") == refusal


def test_names_with_quotes_blanks_and_backslashes(site):
    role = 'o\'Hara \\ "x"'
    site.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    try:
        site.execute("SELECT tensile_grant_usage(%s)", role)
        add_model(site, owner=role, name="m'; DROP TABLE tensile.jobs; --", columns="a\"b'c")
        with Postman(site, says("o'dd")) as postman:
            value = site.value(
                'SELECT tensile_predict(%s, t) FROM (SELECT 1 AS "a""b\'c") t',
                "m'; DROP TABLE tensile.jobs; --",
                role=role,
            )
        assert value == "o'dd"
        assert bytes(postman.seen[0]["features"]) == b"""{"a\\"b'c": 1}"""
    finally:
        site.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        site.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


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
        if how == "timeout":
            connection.execute("SET statement_timeout = '400ms'")
        else:
            threading.Timer(0.4, connection.cancel_safe).start()
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
        wait_for(lambda: postman.seen)
        # It ended just before the row came.
        site.execute("UPDATE tensile.jobs SET state = 'succeeded', finished_at = now()")
        wait_for(lambda: len(served(site)) == 2)
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
        ("UPDATE tensile.jobs SET cancel_requested = true", "57014", "job 1 was cancelled"),
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
        wait_for(lambda: len(postman.seen) == 2)
        site.execute(end)
    for outcome in (first, second):
        assert outcome["error"].sqlstate == sqlstate
        assert message is None or outcome["error"].diag.message_primary == message


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
        wait_for(lambda: postman.seen)
        assert site.value("SELECT tensile.delete_abandoned_requests()") == 0
        site.execute("SELECT pg_terminate_backend(%s)", pid)
        thread.join()
        wait_for(lambda: not site.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid))
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
            assert name.startswith(f"tensile_db serving {oid} ")
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
        wait_for(lambda: site.value(kept) == 0)
        site.execute("GRANT EXECUTE ON FUNCTION tensile.dblink_exec(text, text) TO alice")
        with site.connect("alice") as connection:
            connection.execute(ask)
            wait_for(lambda: site.value(kept) == 0)


def test_a_row_is_not_predicted_inside_another_roles_security_definer_function(site):
    add_model(site)
    site.execute(
        "CREATE FUNCTION public.theirs() RETURNS text LANGUAGE sql SECURITY DEFINER"
        " AS $$ SELECT tensile_predict('digits', '\\x00'::bytea) $$;"
        "ALTER FUNCTION public.theirs() OWNER TO alice"
    )
    assert site.refusal("SELECT theirs()", role="bob")[0] == "42501"
