"""Timeouts that are set for a database, and administrators who cancel statements: no job is lost by them."""

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.patience import wait_until


def test_a_databases_timeouts_end_no_job(database, start_worker):
    name = sql.Identifier(conninfo_to_dict(database.admin)["dbname"])
    with psycopg.connect(database.admin, autocommit=True) as connection:
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
            for whose, value in (("DATABASE {}", "1ms"), ("ROLE postgres IN DATABASE {}", "0")):
                statement = f"ALTER {whose} SET {setting} = '{value}'"
                connection.execute(sql.SQL(statement).format(name))
    start_worker()
    job = database.submit("points", epochs=3)
    assert database.wait(job)["state"] == "succeeded"


def test_a_statement_that_is_cancelled_is_tried_again(database, start_worker):
    start_worker()
    job = database.submit("points", epochs=1_000_000)
    begun = database.wait_until(job, lambda row: (row["iteration"] or 0) > 0)
    # By it a job's own write makes sure that the job is still its own.
    cancel_one = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND query LIKE 'SELECT tensile.jobs.id%%FOR NO KEY UPDATE'"
    )
    with psycopg.connect(database.admin) as locker:
        locker.execute("LOCK TABLE tensile.jobs IN ACCESS EXCLUSIVE MODE")
        wait_until(lambda: database.execute(cancel_one))
    later = database.wait_until(job, lambda row: (row["iteration"] or 0) > begun["iteration"])
    assert (later["state"], later["attempt"]) == ("running", begun["attempt"])
    database.ask(job, cancel_requested=True)
    assert database.wait(job)["state"] == "cancelled"
