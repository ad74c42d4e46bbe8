"""One row's prediction, as the session sees it: forms, rights, refusals, and what is left behind."""

import psycopg
import pytest
from psycopg import sql

from tests.jobs.inserted_rows import add_model
from tests.patience import wait_until
from tests.played.told_postman import Postman, says, served, waiting_session

FORMS = (
    ("image", "bytes"),
    ("ARRAY[1.5, 2]", "array"),
    ("7", "array"),
    ("id", "array"),
    ("7::bigint", "array"),
    ("7::smallint", "array"),
    ("7.5", "array"),
    ("7.5::real", "array"),
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
        for source in (
            *("'images_table'", "'images_table'::regclass", "'images_table'::regclass::oid"),
            *("source => 'images_table'", "'names'"),
        ):
            state, message, _ = site.refusal("SET statement_timeout = '1s'; " + asked.format(source))
            assert state in ("57014", "42703"), message
        assert postman.seen == []
    assert {job["kind"] for job in site.execute("SELECT kind FROM tensile.jobs")} == {"predict"}


def test_null_features_give_null_without_asking_anybody(site):
    add_model(site)
    for kind in ("bytea", "float8", "float8[]", "boolean[]", "jsonb"):
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
        beneath = f"SELECT tensile.request_serving_visibly(tensile.sign(), {model}, 'bytes', false, '')"
        assert site.value(beneath, role="alice") is None
        beneath = (
            "INSERT INTO tensile.serving_requests (model_id, requested_by, client_pid, client_started_at,"
            f" form, wants_probabilities, features) SELECT {model}, oid, 1, now(), 'bytes', false, ''"
            " FROM pg_roles WHERE rolname = current_user"
        )
        assert site.refusal(beneath)[0] == "42501"
        assert site.refusal(ask, role="mallory")[0] == "42501"
        assert site.value(ask, role="bob") == "odd"
    assert len(postman.seen) == 1
    assert len(served(site)) == 1


def test_a_role_sees_and_touches_no_requests_but_its_own(site):
    add_model(site)
    ask = "SELECT tensile_predict('digits', '\\x00'::bytea)"
    with Postman(site, lambda request: None) as postman, waiting_session(site, ask) as outcome:
        wait_until(lambda: postman.seen)
        for role in ("bob", "carol"):
            assert site.execute("SELECT * FROM tensile.serving_requests", role=role) == []
            assert site.value("SELECT tensile.delete_serving_request(tensile.sign(), 1)", role=role) is False
            assert site.value("SELECT tensile.ask_serving_again(1)", role=role) is False
        assert site.refusal("UPDATE tensile.serving_requests SET answered = true")[0] == "42501"
        assert (
            site.refusal("SELECT tensile.over_serving_connection(tensile.sign(), 'SELECT 1')")[0] == "42501"
        )
        assert site.refusal("SELECT tensile.over_loopback('SELECT 1', '{}', NULL)")[0] == "42501"
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
