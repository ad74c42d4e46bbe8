"""What users see and do in a catalog from elsewhere before its owners are found: nothing by its numbers."""

import pytest

from tests.fixtures.db import PUPPET_LOGIN, Puppet
from tests.jobs.inserted_rows import ELSEWHERE, LEFT_BY_A_JOB, add_job, add_model
from tests.patience import wait_until

NOT_AT_HOME = (
    "the catalog of tensile_db comes from another database, where roles and tables may have other numbers"
)
FIND = "SELECT * FROM tensile_after_restore()"
BY_NAMES = "SELECT * FROM tensile_after_restore(numbers_kept => false)"
VIEWS = (
    *("progress", "queue", "searches", "trials", "quota_usage"),
    *("plan_summary", "plan_runs", "memory_timeline"),
)


def swap(site, moved):
    """Let alice's and bob's numbers have been each other's elsewhere."""
    numbers = {
        row["rolname"]: row["oid"]
        for row in site.execute("SELECT rolname, oid::bigint FROM pg_roles WHERE rolname IN ('alice', 'bob')")
    }
    moved({"alice": numbers["bob"], "bob": numbers["alice"]})


def rows_of(site, view, role):
    return site.value(f"SELECT count(*) FROM tensile.{view}", role=role)


def test_views_show_no_rows_by_foreign_numbers(site, moved):
    job = add_job(site, "alice", state="paused", days_ago=None)
    site.execute(LEFT_BY_A_JOB.format(job=job))
    # A search of its own, of which a trial is another job.
    search = add_job(site, "alice", state="running", days_ago=None, kind="search")
    site.execute(
        f"UPDATE tensile.search_requests SET job_id = {search};"
        f" UPDATE tensile.search_trials SET search_id = {search}"
    )
    assert {view: rows_of(site, view, "alice") > 0 for view in VIEWS} == dict.fromkeys(VIEWS, True)
    assert {view: rows_of(site, view, "bob") for view in VIEWS} == dict.fromkeys(VIEWS, 0)
    swap(site, moved)
    for role in ("alice", "bob"):
        assert {view: rows_of(site, view, role) for view in VIEWS} == dict.fromkeys(VIEWS, 0)
    # An administrator sees what is everybody's.
    assert rows_of(site, "progress", "carol") == 2


def test_whoever_may_only_read_the_views_may_still_do_so(site):
    site.execute("GRANT USAGE ON SCHEMA tensile TO mallory; GRANT SELECT ON tensile.progress TO mallory")
    assert rows_of(site, "progress", "mallory") == 0


@pytest.mark.parametrize(
    "call",
    [
        "tensile.delete_models(tensile.sign(), 'bob'::regrole, 'digits', NULL)",
        "tensile.set_pinned(tensile.sign(), 'bob'::regrole, 'digits', 1)",
        "tensile.delete_jobs(tensile.sign(), now(), NULL)",
        "tensile_predict('digits', '{1}'::float8[])",
        "tensile_predict('digits', '\\x00'::bytea)",
    ],
)
def test_nothing_is_done_by_a_foreign_number_past_policies_either(site, moved, call):
    add_model(site, owner="alice")
    add_job(site, "alice")
    swap(site, moved)
    sqlstate, message, hint = site.refusal(f"SELECT {call}", role="bob")
    assert (sqlstate, message) == ("55000", NOT_AT_HOME)
    assert hint.startswith(f"As a superuser: {FIND};")
    assert site.execute("SELECT pinned FROM tensile.models") == [{"pinned": False}]
    assert site.value("SELECT count(*) FROM tensile.jobs") == 1


def test_the_doctor_does_not_blame_the_way_back_to_the_server(site):
    site.execute(ELSEWHERE)
    problems = site.execute("SELECT \"check\" FROM tensile_doctor() WHERE status = 'problem'", role="alice")
    assert [row["check"] for row in problems] == ["catalog", "worker"]


def test_a_forged_quota_gets_its_forger_no_models(site, moved):
    """Administrators may write quotas, and no models."""
    add_model(site, owner="alice")
    theirs = site.value("SELECT owned_by::bigint FROM tensile.models")
    site.execute(
        "INSERT INTO tensile.quotas (role_oid, role, max_concurrent_jobs, updated_at)"
        " VALUES (%s, 'carol', 1, 'infinity')",
        theirs,
        role="carol",
    )
    moved({})
    site.execute(FIND)
    assert site.value("SELECT owner FROM tensile.models") == "alice"


def test_a_role_that_is_named_like_a_dropped_one_is_not_it(site, moved):
    add_model(site, owner="alice")
    site.execute("UPDATE tensile.models SET owner = 'bo (dropped)'")
    site.execute('CREATE ROLE "bo (dropped)"')
    try:
        moved({})
        site.execute(FIND)
        assert site.value("SELECT owner FROM tensile.models") == "postgres"
    finally:
        site.execute('DROP ROLE "bo (dropped)"')


def test_within_one_cluster_it_is_asked_where_a_name_has_another_number(site, moved):
    """Two servers began as one, and the role was made anew in this one."""
    add_model(site, owner="alice")
    moved({"alice": 3_000_000_000}, cluster=None)
    sqlstate, message, _ = site.refusal(FIND, role="postgres")
    assert (sqlstate, message.partition(",")[0]) == ("22023", "the catalog's owners have other names by now")
    site.execute(BY_NAMES)
    assert site.value("SELECT owned_by = 'alice'::regrole FROM tensile.models")


def test_owners_are_not_found_beside_a_worker_that_is_connected(site):
    add_job(site, state="queued", days_ago=None)
    with Puppet(site, lambda puppet, job: None):
        site.execute(ELSEWHERE)
        sqlstate, message, hint = site.refusal(BY_NAMES, role="postgres")
    assert (sqlstate, message) == ("55006", "a worker is running, whose jobs would be deleted")
    assert hint == "Stop all workers first."
    # A server process ends a moment after its client has left.
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
    wait_until(lambda: site.value(sessions, PUPPET_LOGIN) == 0, lambda: "the worker's session does not end")
    # Rows of workers that came with a dump look alive for a while.
    assert site.value("SELECT state FROM tensile.workers WHERE login = %s", PUPPET_LOGIN) == "ready"
    site.execute(BY_NAMES)
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0
