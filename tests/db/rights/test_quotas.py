"""What a role may have of the devices: who says so, and that nothing gets past it."""

import threading

import psycopg
import pytest

from tests.db.rights.quotas import allow
from tests.fixtures.db import Puppet
from tests.jobs.heard_notices import heard_by
from tests.jobs.inserted_rows import add_model
from tests.patience import wait_until

SUBMIT = "SELECT tensile_submit('vgg16', 'images_table')"
LIMITED = "SELECT tensile_submit('vgg16', 'images_table', memory_limit => %s)"
RAISE_IT = "a member of tensile_admin can raise the quota: tensile_set_quota('alice', ...)."

ONE_JOB = (
    "53400",
    'role "alice" has 1 unfinished jobs, and may have at most 1',
    f"Wait for one to end, or cancel one: tensile.progress lists them; {RAISE_IT}",
)


def use(site, job, seconds):
    site.execute("UPDATE tensile.jobs SET device_seconds = %s WHERE id = %s", seconds, job)


def end(site, job):
    site.execute("UPDATE tensile.jobs SET state = 'succeeded' WHERE id = %s", job)


@pytest.fixture
def job(site):
    return site.value(SUBMIT, role="alice")


def test_without_quotas_there_is_no_limit(site):
    assert [site.value(SUBMIT, role="alice") for _ in range(3)] == [1, 2, 3]


def test_a_role_has_no_more_unfinished_jobs_than_it_may(site, job):
    allow(site, max_concurrent_jobs=1)
    assert site.refusal(SUBMIT) == ONE_JOB
    site.execute("SELECT tensile_pause(%s)", job, role="alice")
    assert site.refusal(SUBMIT) == ONE_JOB
    assert site.value(SUBMIT, role="bob")
    end(site, job)
    assert site.value(SUBMIT, role="alice")


@pytest.mark.parametrize(
    "insert",
    [
        'SELECT tensile.insert_job(\'{"kind": "train", "source_name": "t", "source_oid": 1259}\')',
        """
        SELECT tensile.insert_job_visibly(
            tensile.sign(), '{"kind": "train", "source_name": "t", "source_oid": 1259}')
        """,
        """
        INSERT INTO tensile.jobs (submitted_by, owner, source_oid, source_name)
        SELECT oid, rolname, 0, '' FROM pg_roles WHERE rolname = current_user
        """,
    ],
)
def test_nothing_gets_past_a_quota(site, job, insert):
    allow(site, max_concurrent_jobs=1)
    assert site.refusal(insert) == ONE_JOB


def test_nobody_learns_from_a_refusal_what_others_have_used(site, job):
    allow(site, max_concurrent_jobs=1)
    insert = (
        "INSERT INTO tensile.jobs (submitted_by, owner, source_oid, source_name)"
        " SELECT oid, rolname, 0, '' FROM pg_roles WHERE rolname = 'alice'"
    )
    refusal = site.refusal(insert, role="bob")
    assert refusal[:2] == ("42501", 'new row violates row-level security policy for table "jobs"')


def test_several_rows_of_one_statement_are_counted(site):
    allow(site, max_concurrent_jobs=1)
    insert = (
        "INSERT INTO tensile.jobs (submitted_by, owner, source_oid, source_name)"
        " SELECT oid, rolname, 0, '' FROM pg_roles, generate_series(1, 2) WHERE rolname = current_user"
    )
    assert site.refusal(insert) == ONE_JOB


def test_tensile_train_is_refused_with_the_same_words(site, job):
    allow(site, max_concurrent_jobs=1)
    with Puppet(site, lambda puppet, job: None):
        assert site.refusal("SELECT tensile_train('vgg16', 'images_table')") == ONE_JOB


def test_of_two_sessions_at_once_only_one_takes_the_last_place(site):
    allow(site, max_concurrent_jobs=1)
    outcomes = []

    def submit():
        try:
            outcomes.append(site.value(SUBMIT, role="alice"))
        except psycopg.Error as error:
            outcomes.append(error.sqlstate)

    with site.connect("alice", autocommit=False) as first:
        first.execute(SUBMIT)
        second = threading.Thread(target=submit)
        second.start()
        wait_until(lambda: site.execute("SELECT pid FROM pg_locks WHERE NOT granted"))
        # Others do not wait for her.
        allow(site, "'bob'", max_concurrent_jobs=1)
        site.value(SUBMIT, role="bob")
        first.commit()
        second.join()
    assert outcomes == ["53400"]


@pytest.mark.parametrize(
    "lock",
    [
        "DO $$ BEGIN LOCK TABLE tensile.quota_locks IN ACCESS SHARE MODE; END $$",
        "SELECT FROM tensile.quota_locks FOR KEY SHARE",
        "SELECT tensile.lock_quota('alice'::regrole, 'jobs')",
    ],
)
def test_nobody_can_hold_up_who_submits(site, lock):
    allow(site, max_concurrent_jobs=5)
    site.value(SUBMIT, role="alice")
    assert site.refusal(lock, role="bob")[0] == "42501"
    assert site.refusal(lock)[0] == "42501"


def test_a_place_is_free_again_when_the_other_session_rolls_back(site):
    allow(site, max_concurrent_jobs=1)
    with site.connect("alice", autocommit=False) as first:
        first.execute(SUBMIT)
        rollback = site.soon_after_a_call("tensile_submit", first.rollback)
        assert site.value(SUBMIT, role="alice")
        rollback.join()


def test_a_transaction_that_waits_for_itself_is_told_so(site):
    """tensile_train submits over a session of its own, for which the first job is not committed."""
    allow(site, max_concurrent_jobs=5)
    with Puppet(site, lambda puppet, job: None), site.connect("alice", autocommit=False) as connection:
        connection.execute(SUBMIT)
        with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
            connection.execute("SELECT tensile_train('vgg16', 'images_table')")
    said = caught.value.diag
    assert said.message_primary == (
        'another transaction of role "alice" has submitted a job and has not ended'
    )
    assert said.message_hint == "COMMIT it first: its job counts towards the quota, or does not."


def test_an_older_snapshot_is_refused_where_there_is_something_to_count(site):
    allow(site, max_device_nbytes=1000)
    with site.connect("alice", autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute(SUBMIT)
        connection.commit()
        allow(site, max_concurrent_jobs=9)
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="cannot see how much of its quota"):
            connection.execute(SUBMIT)


def test_a_job_may_ask_for_the_memory_of_its_role_and_no_more(site):
    allow(site, max_device_nbytes=1000)
    assert site.job(site.value(LIMITED, 1000, role="alice"))["memory_limit_nbytes"] == 1000
    assert site.refusal(LIMITED, 1001) == (
        "53400",
        'memory_limit is 1001 bytes, and a job of role "alice" may have at most 1000 bytes of device memory',
        f"Leave memory_limit out, or ask for less; {RAISE_IT}",
    )


def test_a_job_that_asks_for_no_memory_limit_gets_its_roles(site):
    allow(site, max_device_nbytes=1000)
    assert site.job(site.value(SUBMIT, role="alice"))["memory_limit_nbytes"] == 1000
    assert site.job(site.value(SUBMIT, role="bob"))["memory_limit_nbytes"] is None


def test_device_time_that_is_used_up_is_used_up(site, job):
    allow(site, max_device_seconds=100)
    use(site, job, 99.9)
    second = site.value(SUBMIT, role="alice")
    use(site, second, 0.25)
    end(site, second)
    refusal = (
        "53400",
        'role "alice" has used 100.2 seconds of device time, and may use 100',
        f"A{RAISE_IT[1:]}",
    )
    assert site.refusal(SUBMIT) == refusal
    allow(site, max_device_seconds=101)
    assert site.value(SUBMIT, role="alice")


def test_jobs_under_way_rest_when_the_device_time_is_used_up(site, job):
    running, of_bob = site.value(SUBMIT, role="alice"), site.value(SUBMIT, role="bob")
    site.execute("UPDATE tensile.jobs SET state = 'running', worker_id = 1 WHERE id = %s", running)
    pause = "SELECT tensile.pause_over_quota()"
    assert site.value(pause, role="puppet_login") == 0
    allow(site, max_device_seconds=7)
    use(site, running, 7.25)
    use(site, of_bob, 1000)
    assert site.value(pause, role="puppet_login") == 2
    assert site.value(pause, role="puppet_login") == 0
    reason = "its role has used 7.3 of 7 seconds of device time"
    rows = [site.job(number) for number in (job, running, of_bob)]
    assert [(row["state"], row["pause_requested"], row["pause_reason"]) for row in rows] == [
        ("paused", True, reason),
        ("running", True, reason),
        ("queued", False, None),
    ]
    assert site.refusal("SELECT tensile_resume(%s)", job) == (
        "53400",
        'role "alice" has used 7.2 seconds of device time, and may use 7',
        "A member of tensile_admin can raise the quota: tensile_set_quota.",
    )
    allow(site, max_device_seconds=8)
    assert site.value("SELECT tensile_resume(%s)", job, role="alice") is True
    row = site.job(job)
    assert (row["state"], row["pause_reason"]) == ("queued", None)


def test_a_role_without_a_quota_has_that_of_all_others(site, job):
    allow(site, "NULL", max_concurrent_jobs=1)
    assert site.refusal(SUBMIT)[0] == "53400"
    allow(site)
    assert site.value(SUBMIT, role="alice")
    site.execute("DELETE FROM tensile.quotas WHERE role = 'alice'", role="carol")
    assert site.refusal(SUBMIT)[0] == "53400"


def test_only_admins_set_quotas(site):
    assert site.refusal("SELECT tensile_set_quota('alice')") == (
        "42501",
        'role "alice" may not set quotas',
        "Ask a member of tensile_admin; tensile.quota_usage shows yours.",
    )
    assert site.refusal("SELECT tensile_set_quota('alice')", role="mallory")[0] == "42501"


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ("'alic'", ("42704", 'no role "alic"', 'Did you mean "alice"?')),
        (
            "'alice', max_concurrent_jobs => -1",
            ("22023", "max_concurrent_jobs must be at least 0, got -1", "Leave it out for no limit."),
        ),
        (
            "'alice', max_device_nbytes => 0",
            ("22023", "max_device_nbytes must be at least 1, got 0", "Leave it out for no limit."),
        ),
        (
            "'alice', max_device_seconds => 'NaN'",
            ("22023", "max_device_seconds must be at least 0, got NaN", "Leave it out for no limit."),
        ),
        (
            "'alice', max_serving_requests => -1",
            ("22023", "max_serving_requests must be at least 0, got -1", "Leave it out for no limit."),
        ),
    ],
)
def test_a_quota_that_cannot_be_is_refused(site, arguments, refusal):
    assert site.refusal(f"SELECT tensile_set_quota({arguments})", role="carol") == refusal


def test_everyone_sees_the_own_quota_and_an_admin_all(site, job):
    allow(site, max_concurrent_jobs=2, max_device_nbytes=1000, max_device_seconds=3, max_serving_requests=5)
    allow(site, "'bob'", max_concurrent_jobs=7)
    allow(site, "NULL", max_concurrent_jobs=9)
    use(site, job, 1.5)
    seen = {
        role: [row["role"] for row in site.execute("SELECT role FROM tensile.quotas ORDER BY 1", role=role)]
        for role in ("alice", "bob", "carol")
    }
    assert seen == {"alice": ["alice", None], "bob": ["bob", None], "carol": ["alice", "bob", None]}
    usage = "SELECT * FROM tensile.quota_usage ORDER BY role"
    of_alice = {
        "role": "alice",
        "unfinished_jobs": 1,
        "max_concurrent_jobs": 2,
        "max_device_nbytes": 1000,
        "device_seconds": 1.5,
        "max_device_seconds": 3,
        "serving_requests": 0,
        "max_serving_requests": 5,
    }
    assert site.execute(usage, role="alice") == [of_alice]
    assert [row["role"] for row in site.execute(usage, role="carol")] == ["alice", "bob", "carol"]


def test_who_has_no_jobs_yet_sees_the_quota_of_all(site):
    usage = "SELECT role, unfinished_jobs, max_concurrent_jobs FROM tensile.quota_usage"
    assert site.execute(usage, role="bob") == []
    allow(site, "NULL", max_concurrent_jobs=9)
    assert site.execute(usage, role="bob") == [
        {"role": "bob", "unfinished_jobs": 0, "max_concurrent_jobs": 9}
    ]


def test_an_administrator_is_told_that_a_groups_quota_is_not_its_members(site):
    site.execute("CREATE ROLE team; CREATE ROLE nobodys; GRANT team TO alice")
    try:
        with site.connect("carol") as connection:
            heard = heard_by(connection)
            for role in ("alice", "nobodys", None):
                connection.execute("SELECT tensile_set_quota(%s, 1)", [role])
            assert heard == []
            connection.execute("SELECT tensile_set_quota('team', 1)")
        (told,) = heard
        assert told.startswith('the quota of "team" counts what is submitted after SET ROLE to it; what its')
    finally:
        site.execute("DROP ROLE team; DROP ROLE nobodys")


def test_a_raised_quota_names_the_jobs_that_can_go_on(site, job):
    by_its_owner, of_bob = site.value(SUBMIT, role="alice"), site.value(SUBMIT, role="bob")
    site.execute("SELECT tensile_pause(%s)", by_its_owner, role="alice")
    allow(site, "NULL", max_device_seconds=7)
    for number in (job, of_bob):
        use(site, number, 7.25)
    site.execute("SELECT tensile.pause_over_quota()", role="puppet_login")
    reasons = site.execute("SELECT job_id, state, wait_reason FROM tensile.queue ORDER BY 1", role="carol")
    reason = "its role has used 7.3 of 7 seconds of device time"
    assert [tuple(row.values()) for row in reasons] == [
        (job, "paused", reason),
        (by_its_owner, "paused", None),
        (of_bob, "paused", reason),
    ]
    said = "jobs that a quota has paused may go on now, each by tensile_resume: "
    with site.connect("carol") as connection:
        heard = heard_by(connection)
        connection.execute("SELECT tensile_set_quota(NULL, max_device_seconds => 7.2)")
        assert heard == []
        connection.execute("SELECT tensile_set_quota('bob', max_device_seconds => 8)")
        connection.execute("SELECT tensile_set_quota(NULL)")
        assert heard == [f"{said}{of_bob}", f"{said}{job}, {of_bob}"]
    site.execute(
        "INSERT INTO tensile.jobs (state, pause_requested, pause_reason, submitted_by, owner, source_oid,"
        " source_name) SELECT 'paused', true, 'quota', submitted_by, owner, 0, '' FROM tensile.jobs,"
        " generate_series(1, 9) WHERE id = %s",
        job,
    )
    with site.connect("carol") as connection:
        heard = heard_by(connection)
        connection.execute("SELECT tensile_set_quota('alice')")
        connection.execute("SELECT tensile_set_quota(NULL)")
    first = ", ".join(map(str, (job, *range(of_bob + 1, of_bob + 10))))
    assert heard[0] == said + first
    assert heard[1].endswith(" and others")


def test_what_is_shown_as_unfinished_is_what_counts(site, job):
    allow(site, max_concurrent_jobs=2)
    model = add_model(site)
    site.execute(
        "SELECT tensile.request_serving_visibly(tensile.sign(), %s, 'bytes', false, '')", model, role="alice"
    )
    site.value(
        "SELECT tensile_submit_search('vgg16', 'images_table', '{\"seed\": {\"choices\": [1, 2]}}')",
        role="alice",
    )
    kinds = site.execute("SELECT kind FROM tensile.jobs WHERE finished_at IS NULL ORDER BY id")
    assert [row["kind"] for row in kinds] == ["train", "serve", "search"]
    assert site.value("SELECT unfinished_jobs FROM tensile.quota_usage", role="alice") == 1
    assert site.value(SUBMIT, role="alice")
    assert site.value("SELECT unfinished_jobs FROM tensile.quota_usage", role="alice") == 2
    assert site.refusal(SUBMIT)[0] == "53400"
