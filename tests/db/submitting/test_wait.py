"""tensile_wait and tensile_cancel: for jobs that were submitted earlier, perhaps by another session."""

import threading

import psycopg
import pytest

from tests.fixtures.db import Puppet
from tests.patience import PATIENCE_S

SUBMIT = "SELECT tensile_submit('vgg16', 'images_table')"


def test_wait_returns_what_came_of_a_submitted_job(site):
    job = site.value(SUBMIT, role="alice")
    with Puppet(site, lambda puppet, job: puppet.succeed(job, model_version=3, loss=0.5)):
        (row,) = site.execute("SELECT * FROM tensile_wait(%s)", job, role="alice")
    assert (row["job_id"], row["state"], row["version"], row["loss"]) == (job, "succeeded", 3, 0.5)


def test_wait_raises_the_error_of_a_job_that_failed(site):
    job = site.value(SUBMIT, role="alice")
    with Puppet(site, lambda puppet, job: puppet.fail(job, "53200", "it does not fit", "Shrink it.")):
        refusal = site.refusal("SELECT tensile_wait(%s)", job)
    assert refusal == ("53200", "it does not fit", "Shrink it.")


def test_a_timeout_returns_the_job_as_it_stands(site):
    job = site.value(SUBMIT, role="alice")
    (row,) = site.execute("SELECT state, seconds FROM tensile_wait(%s, 0.2)", job, role="alice")
    assert row["state"] == "queued"
    assert row["seconds"] > 0.2


def test_a_wait_that_is_cancelled_leaves_the_job_alone(site):
    job = site.value(SUBMIT, role="alice")
    with site.connect("alice") as connection:
        site.soon_after_a_call("tensile_wait", connection.cancel_safe)
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT tensile_wait(%s)", [job])
    assert (site.job(job)["state"], site.job(job)["cancel_requested"]) == ("queued", False)


@pytest.mark.parametrize("timeout", ["-1", "'NaN'", "'-infinity'"])
def test_a_timeout_that_is_no_time_is_refused(site, timeout):
    assert site.refusal(f"SELECT tensile_wait(1, {timeout})")[0] == "22023"


@pytest.mark.parametrize("call", ["tensile_wait(17)", "tensile_cancel(17)"])
def test_a_job_that_is_not_there_is_refused(site, call):
    assert site.refusal(f"SELECT {call}") == (
        "42704",
        "no job 17",
        "tensile.jobs has the jobs that you may see.",
    )


@pytest.mark.parametrize("call", ["tensile_wait(NULL)", "tensile_cancel(NULL)"])
def test_a_job_without_a_number_is_refused(site, call):
    assert site.refusal(f"SELECT {call}")[:2] == ("22023", "job_id is NULL")


def test_a_queued_job_is_cancelled_at_once_with_no_worker_there(site):
    job = site.value(SUBMIT, role="alice")
    assert site.value("SELECT tensile_cancel(%s)", job, role="alice") is True
    row = site.job(job)
    assert (row["state"], row["phase"], row["error_sqlstate"]) == ("cancelled", "done", "57014")
    assert row["finished_at"] is not None


def test_a_running_job_is_asked_to_end_and_its_worker_is_told(site):
    job = site.value(SUBMIT, role="alice")
    site.execute("UPDATE tensile.jobs SET state = 'running', worker_id = 1")
    with site.connect("puppet_login") as worker:
        worker.execute("LISTEN tensile_jobs")
        assert site.value("SELECT tensile_cancel(%s)", job, role="alice") is True
        assert [notify.payload for notify in worker.notifies(timeout=5, stop_after=1)] == [str(job)]
    assert (site.job(job)["state"], site.job(job)["cancel_requested"]) == ("running", True)


def test_a_cancellation_rolled_back_was_never_asked(site):
    job = site.value(SUBMIT, role="alice")
    with site.connect("alice", autocommit=False) as connection:
        connection.execute("SELECT tensile_cancel(%s)", [job])
        connection.rollback()
    assert site.job(job)["state"] == "queued"


def test_a_job_that_has_ended_cannot_be_cancelled(site):
    job = site.value(SUBMIT, role="alice")
    site.execute("UPDATE tensile.jobs SET state = 'succeeded'")
    assert site.value("SELECT tensile_cancel(%s)", job, role="alice") is False


def test_a_cancellation_cannot_be_taken_back(site):
    job = site.value(SUBMIT, role="alice")
    site.execute("UPDATE tensile.jobs SET state = 'running'")
    site.execute("SELECT tensile_cancel(%s)", job, role="alice")
    site.execute("UPDATE tensile.jobs SET cancel_requested = false WHERE id = %s", job, role="alice")
    assert site.job(job)["cancel_requested"] is True


TALKATIVE = """
CREATE FUNCTION talk() RETURNS text LANGUAGE plpython3u AS $$
    plpy.execute('SELECT tensile.load_udf()')
    from tensile_db.udf.session import Session
    session = Session(plpy)
    try:
        while True:
            session.{kind}('still here')
    except session.sql_error as error:
        return f'{{error.sqlstate}}: {{error}}'
$$
"""


@pytest.mark.parametrize("kind", ["notice", "warning"])
def test_a_cancellation_while_a_message_is_sent_is_one_like_any_other(site, kind):
    with psycopg.connect(site.admin, autocommit=True) as connection:
        connection.execute(TALKATIVE.format(kind=kind))
        told = threading.Event()
        connection.add_notice_handler(lambda _: told.set())

        def cancel():
            assert told.wait(PATIENCE_S)
            connection.cancel_safe()

        threading.Thread(target=cancel).start()
        (said,) = connection.execute("SELECT talk()").fetchone()
    assert said == "57014: canceling statement due to user request"


def test_a_call_cancelled_while_the_modules_are_loaded_shows_no_traceback(site):
    site.execute(
        "CREATE OR REPLACE FUNCTION tensile.load_udf() RETURNS void LANGUAGE sql"
        " AS 'SELECT pg_catalog.pg_sleep(60)::text::void'"
    )
    with site.connect("alice") as connection:
        connection.execute("SET statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled) as caught:
            connection.execute("SELECT * FROM tensile_doctor()")
    assert caught.value.diag.message_primary == "canceling statement due to statement timeout"
    assert "Traceback" not in caught.value.diag.context


def refusal_within(connection, statement):
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement)
    return caught.value.sqlstate, caught.value.diag.message_primary, caught.value.diag.message_hint


@pytest.mark.parametrize(
    "change",
    [
        "SELECT tensile_pause(%s)",
        "SELECT tensile_cancel(%s)",
        "SELECT tensile_set_priority(%s, -1)",
        "SAVEPOINT before; SELECT tensile_set_priority(%s, -1)",
        "SAVEPOINT before; SELECT tensile_set_priority(%s, -1); RELEASE before",
    ],
)
def test_who_waits_for_a_job_that_its_own_transaction_has_changed_is_told(site, change):
    job = site.value(SUBMIT, role="alice")
    with site.connect("alice", autocommit=False) as connection:
        connection.execute(change.replace("%s", str(job)))
        found = refusal_within(connection, f"SELECT * FROM tensile_wait({job}, timeout => 30)")
    assert found == (
        "55000",
        f"job {job} was changed by this transaction, and its worker waits for that to be committed",
        "COMMIT between what pauses, resumes, cancels or moves a job and tensile_wait.",
    )


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_who_waits_for_a_job_that_its_own_transaction_has_submitted_is_told(site, level):
    with site.connect("alice", autocommit=False) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        (job,) = connection.execute(SUBMIT).fetchone().values()
        found = refusal_within(connection, f"SELECT * FROM tensile_wait({job}, timeout => 1)")
    assert found == (
        "55000",
        f"job {job} was submitted by this transaction, and no worker sees it before that is committed",
        "COMMIT between tensile_submit and tensile_wait, or call tensile_train.",
    )


def test_what_was_rolled_back_or_changes_another_job_keeps_nobody_from_waiting(site):
    job, other = (site.value(SUBMIT, role="alice") for _ in range(2))
    with site.connect("alice", autocommit=False) as connection:
        connection.execute(f"SAVEPOINT before; SELECT tensile_set_priority({job}, -1); ROLLBACK TO before")
        connection.execute(f"SELECT tensile_set_priority({other}, -1)")
        row = connection.execute(f"SELECT state FROM tensile_wait({job}, timeout => 0)").fetchone()
    assert row["state"] == "queued"


def test_who_waits_for_a_job_whose_table_it_has_locked_is_told(site):
    site.execute("GRANT ALL ON images_table TO alice")
    job = site.value(SUBMIT, role="alice")
    with site.connect("alice", autocommit=False) as connection:
        connection.execute("LOCK TABLE images_table IN ACCESS EXCLUSIVE MODE")
        found = refusal_within(connection, f"SELECT state FROM tensile_wait({job}, timeout => 0)")
    assert found == (
        "55000",
        "this transaction has locked public.images_table, which a worker is to read",
        "COMMIT what truncated, altered or locked it first.",
    )


def test_a_lock_that_lets_a_worker_read_keeps_nobody_from_waiting(site):
    site.execute("GRANT ALL ON images_table TO alice")
    job = site.value(SUBMIT, role="alice")
    with site.connect("alice", autocommit=False) as connection:
        connection.execute("LOCK TABLE images_table IN EXCLUSIVE MODE")
        row = connection.execute(f"SELECT state FROM tensile_wait({job}, timeout => 0)").fetchone()
    assert row["state"] == "queued"
