"""How many rows a role may wait to have predicted at a time, and that nothing gets past it."""

import threading

import psycopg
import pytest

from tests.db.rights.quotas import allow
from tests.db.serving.asked_rows import ASK
from tests.jobs.inserted_rows import add_model
from tests.patience import wait_until
from tests.played.told_postman import Postman, says, waiting_session

PREDICT = "SELECT tensile_predict('digits', '\\x00'::bytea)"
TOO_MANY = (
    "53400",
    'role "alice" waits for the predictions of 1 rows, and may for at most 1 at a time',
    (
        "Ask for fewer at a time, or predict a table: tensile_predict(model, source); a member of"
        " tensile_admin can raise the quota: tensile_set_quota('alice', ...)."
    ),
)


def ask(model):
    return ASK.format(model=model, features="''")


@pytest.mark.parametrize("role", ["'alice'", "NULL"])
def test_no_more_sessions_of_a_role_wait_than_may_and_other_roles_do(site, role):
    allow(site, role, max_serving_requests=1)
    add_model(site)
    add_model(site, owner="bob")
    with Postman(site, lambda request: None) as postman, waiting_session(site, PREDICT) as first:
        wait_until(lambda: len(postman.seen) == 1)
        assert site.refusal(PREDICT) == TOO_MANY
        with waiting_session(site, PREDICT, role="bob") as other:
            wait_until(lambda: len(postman.seen) == 2)
            site.execute("UPDATE tensile.serving_requests SET answered = true, prediction = 'odd'")
    assert first["rows"] == other["rows"] == [{"tensile_predict": "odd"}]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_one_row_after_another_may_be_asked_for_at_every_isolation_level(site, level):
    allow(site, max_serving_requests=1)
    add_model(site)
    with Postman(site, says("odd")), site.connect("alice", autocommit=False) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        for _ in range(3):
            assert connection.execute(PREDICT).fetchone() == {"tensile_predict": "odd"}


def test_rows_that_a_role_writes_itself_are_counted_in_one_statement_and_in_several(site):
    allow(site, max_serving_requests=3)
    model = add_model(site)
    with site.connect("alice") as alice:
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            alice.execute(ask(model) + ", generate_series(1, 1000)")
        assert site.value("SELECT count(*) FROM tensile.serving_requests") == 0
        alice.execute(ask(model) + ", generate_series(1, 3)")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            alice.execute(
                "INSERT INTO tensile.serving_requests (model_id, requested_by, client_pid, client_started_at,"
                " form, wants_probabilities, features)"
                " SELECT %s, oid, 1, now(), 'bytes', false, '' FROM pg_roles WHERE rolname = 'alice'",
                [model],
            )
        usage = "SELECT serving_requests, max_serving_requests FROM tensile.quota_usage"
        assert alice.execute(usage).fetchone() == {"serving_requests": 3, "max_serving_requests": 3}
        # Answers count until they are read.
        site.execute("UPDATE tensile.serving_requests SET answered = true")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            alice.execute(ask(model))
        alice.execute(
            "SELECT tensile.delete_serving_request(tensile.sign(), id) FROM tensile.serving_requests"
        )
        alice.execute(ask(model))


def test_rows_of_sessions_that_are_gone_do_not_count(site):
    allow(site, max_serving_requests=1)
    model = add_model(site)
    with site.connect("alice") as gone:
        gone.execute(ask(model))
    wait_until(lambda: site.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'alice'") == 0)
    with site.connect("alice") as alice:
        alice.execute(ask(model))
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            alice.execute(ask(model))
    assert site.value("SELECT count(*) FROM tensile.serving_requests") == 1


def test_of_two_sessions_at_once_only_one_takes_the_last_place(site):
    allow(site, max_serving_requests=1)
    model = add_model(site)
    told = []

    def second():
        with site.connect("alice") as connection:
            try:
                connection.execute(ask(model))
            except psycopg.Error as error:
                told.append(error.sqlstate)

    with site.connect("alice", autocommit=False) as connection:
        connection.execute(ask(model))
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: site.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        connection.commit()
        thread.join(30)
    assert told == ["53400"]
    assert site.value("SELECT count(*) FROM tensile.serving_requests") == 1


def test_who_writes_rows_from_an_older_snapshot_or_holds_others_up_is_told_so(site):
    allow(site, max_serving_requests=9)
    model = add_model(site)
    with site.connect("alice", autocommit=False) as alice:
        alice.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            alice.execute(ask(model))
        alice.rollback()
        alice.execute(ask(model))
        assert site.refusal(ask(model))[:2] == (
            "55P03",
            'another transaction of role "alice" has asked for rows and has not ended',
        )


def test_nobody_is_counted_or_held_up_by_another_role(site):
    allow(site, max_serving_requests=0)
    model = add_model(site)
    assert site.refusal(PREDICT.replace("SELECT", "SELECT 1,"), role="mallory")[0] == "42501"
    insert = (
        "INSERT INTO tensile.serving_requests (model_id, requested_by, client_pid, client_started_at, form,"
        f" wants_probabilities, features) SELECT {model}, oid, 1, now(), 'bytes', false, '' FROM pg_roles"
        " WHERE rolname = 'alice'"
    )
    # Not 53400, which would tell of her quota.
    assert site.refusal(insert, role="bob")[0] == "42501"
    assert site.refusal(insert)[0] == "53400"


def test_nothing_that_a_request_for_a_row_writes_is_logged_so_that_it_waits_for_no_disk(site):
    allow(site, max_serving_requests=10)
    model = add_model(site)
    with site.connect("alice", autocommit=False) as alice:
        alice.execute(ask(model))
        written = site.execute(
            "SELECT relname, relpersistence FROM pg_class WHERE relkind = 'r' AND oid IN (SELECT relation"
            " FROM pg_locks WHERE mode IN ('RowExclusiveLock', 'RowShareLock')"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
            " AND relnamespace = 'tensile'::regnamespace ORDER BY 1"
        )
    kept = {row["relname"] for row in written if row["relpersistence"] != "u"}
    assert {row["relname"] for row in written} - kept == {"quota_locks", "serving_requests"}
    # The first row begins the job that serves, and locks the model against its being dropped.
    assert kept <= {"jobs", "models"}
