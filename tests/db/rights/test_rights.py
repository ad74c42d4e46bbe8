"""Who may do what: rows by owner, identities that cannot be forged, and what the worker's login can do."""

import pytest

from tests.fixtures.db import PUPPET_LOGIN, Puppet
from tests.jobs.heard_notices import heard_by
from tests.jobs.inserted_rows import LEFT_BY_A_JOB

SUBMIT = "SELECT tensile_submit('vgg16', 'images_table')"

OF_A_JOB = [
    "jobs",
    "job_events",
    "predictions",
    "graphs",
    "graph_tensors",
    "graph_ops",
    "latency_logs",
    "plans",
    "plan_events",
    "memory_timeline_points",
    "memory_peaks",
    "training_metrics",
    "models",
    "model_weights",
    "checkpoints",
    "checkpoint_tensors",
    "search_requests",
    "search_trials",
    "searches",
    "trials",
    "progress",
    "queue",
    "plan_summary",
    "memory_timeline",
    "plan_runs",
]


@pytest.fixture
def job_of_alice(site):
    """A job of alice's that has left a row in every table."""
    job = site.value(SUBMIT, role="alice")
    site.execute(LEFT_BY_A_JOB.format(job=job))
    return job


def test_a_user_sees_all_of_the_own_job_another_user_nothing_and_an_admin_all(site, job_of_alice):
    counts = {
        role: [site.value(f"SELECT count(*) FROM tensile.{name}", role=role) for name in OF_A_JOB]
        for role in ("alice", "bob", "carol")
    }
    assert counts == {"alice": [1] * len(OF_A_JOB), "bob": [0] * len(OF_A_JOB), "carol": [1] * len(OF_A_JOB)}


def test_the_tables_of_the_test_above_are_all_that_there_are(site):
    others = site.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'tensile'::regnamespace AND relkind IN ('r', 'v')"
        " AND relname <> ALL (%s) ORDER BY 1",
        OF_A_JOB,
    )
    assert [row["relname"] for row in others] == [
        "architectures",
        "devices",
        "homes",
        "latency_models",
        "latency_samples",
        "migrations",
        "offers",
        "op_workspaces",
        "policies",
        # Of all roles.
        "pretrained_tensors",
        "pretrained_weights",
        # Of nobody but the owner.
        "quota_locks",
        "quota_usage",
        "quotas",
        # Those of sessions, not of jobs.
        "serving_requests",
        "settings",
        "workers",
    ]


def test_a_function_that_leaks_its_argument_sees_no_rows_of_others(site, job_of_alice):
    site.execute("GRANT CREATE ON SCHEMA public TO bob")
    with site.connect("bob") as connection:
        heard = heard_by(connection)
        connection.execute(
            "CREATE FUNCTION leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001"
            " AS $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$"
        )
        for name, column in (("jobs", "owner"), ("progress", "usename"), ("plan_summary", "reason")):
            connection.execute(f"SELECT count(*) FROM tensile.{name} WHERE leak({column}::text)")
    assert heard == []


@pytest.mark.parametrize(
    "call",
    ["tensile_submit('vgg16', 'images_table')", "tensile_models()", "tensile_doctor()", "tensile_cancel(1)"],
)
def test_a_role_without_usage_can_call_nothing(site, call):
    assert site.refusal(f"SELECT {call}", role="mallory")[0] == "42501"


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT tensile.as_caller(tensile.sign(), 'SELECT 1')",
        "SELECT tensile.over_connection('tensile_db', 'SELECT 1')",
        "SELECT tensile.over_loopback('SELECT 1', '{}', NULL)",
        "SELECT tensile.unsign(tensile.sign())",
        "SELECT tensile.signer(tensile.sign())",
        "SELECT tensile.answer_with_error(1, '42704', 'no more', NULL)",
        "SELECT tensile_grant_usage('mallory')",
        "SELECT tensile.dblink_connect_u('c', 'dbname=postgres')",
        """
        INSERT INTO tensile.jobs (submitted_by, owner, source_oid, source_name, state)
        SELECT oid, rolname, 0, '', 'succeeded' FROM pg_roles WHERE rolname = 'alice'
        """,
        "UPDATE tensile.jobs SET state = 'succeeded'",
        "UPDATE tensile.jobs SET submitted_by = 10",
        "DELETE FROM tensile.jobs",
        "INSERT INTO tensile.architectures VALUES ('x', 'timm', 'x')",
        "INSERT INTO tensile.predictions (job_id, ordinal) VALUES (1, 0)",
        "UPDATE tensile.models SET owner = 'bob'",
        "UPDATE tensile.settings SET value = ''",
        "INSERT INTO tensile.quotas (role_oid) VALUES (0)",
        "UPDATE tensile.quotas SET max_concurrent_jobs = NULL",
        "DELETE FROM tensile.quotas",
        "UPDATE tensile.jobs SET device_seconds = 0",
        "UPDATE tensile.jobs SET memory_limit_nbytes = NULL",
        "SELECT tensile.pause_over_quota()",
        """
        INSERT INTO tensile.jobs (submitted_by, owner, source_oid, source_name, search_id)
        SELECT oid, rolname, 0, '', 1 FROM pg_roles WHERE rolname = 'alice'
        """,
        "INSERT INTO tensile.search_trials (search_id, number, job_id, params) VALUES (1, 0, 1, '{}')",
        "UPDATE tensile.search_requests SET trials = 100",
    ],
)
def test_a_user_cannot_write_past_the_functions(site, statement):
    assert site.refusal(statement)[0] == "42501"


@pytest.mark.parametrize(
    "forged",
    [
        "(SELECT oid FROM pg_roles WHERE rolname = 'bob'), 'bob'",
        "(SELECT oid FROM pg_roles WHERE rolname = 'bob'), 'alice'",
        "(SELECT oid FROM pg_roles WHERE rolname = 'alice'), 'bob'",
    ],
)
def test_a_job_cannot_be_submitted_in_the_name_of_another(site, forged):
    sqlstate, message, _ = site.refusal(
        f"INSERT INTO tensile.jobs (submitted_by, owner, source_oid, source_name) VALUES ({forged}, 0, '')"
    )
    assert (sqlstate, message) == (
        "42501",
        'new row violates row-level security policy for table "jobs"',
    )


def test_a_request_says_nothing_of_whose_it_is(site):
    request = """{"kind": "train", "owner": "bob", "submitted_by": 10, "source_name": "images_table",
                  "state": "succeeded", "source_oid": 1259}"""
    for call in ("insert_job(", "insert_job_visibly(tensile.sign(), "):
        job = site.value(f"SELECT tensile.{call}%s)", request, role="alice")
        assert (site.job(job)["owner"], site.job(job)["state"]) == ("alice", "queued")


def test_a_job_cannot_name_the_model_of_another(site, job_of_alice):
    model = site.value("SELECT id FROM tensile.models")
    request = f"""{{"kind": "predict", "source_name": "t", "source_oid": 1259, "model_id": {model}}}"""
    assert site.refusal("SELECT tensile.insert_job(%s)", request, role="bob")[0] == "42501"
    assert (
        site.refusal("SELECT tensile.insert_job_visibly(tensile.sign(), %s)", request, role="bob")[0]
        == "42501"
    )


def test_a_job_of_another_cannot_be_waited_for_or_cancelled(site, job_of_alice):
    for call in ("tensile_wait", "tensile_cancel"):
        assert site.refusal(f"SELECT {call}(%s)", job_of_alice, role="bob")[:2] == (
            "42704",
            f"no job {job_of_alice}",
        )
    assert (
        site.value("SELECT tensile.request_cancel_visibly(tensile.sign(), %s)", job_of_alice, role="bob")
        is False
    )
    assert site.value("SELECT tensile.job_status_now(tensile.sign(), %s)", job_of_alice, role="bob") is None
    assert site.job(job_of_alice)["state"] == "queued"


def test_after_set_role_jobs_are_the_roles(site):
    site.execute("GRANT bob TO alice")
    try:
        with Puppet(site, Puppet.succeed), site.connect("alice") as connection:
            connection.execute("SET ROLE bob")
            connection.execute(SUBMIT)
            connection.execute("SELECT tensile_train('vgg16', 'images_table')")
    finally:
        site.execute("REVOKE bob FROM alice")
    assert site.execute("SELECT DISTINCT owner FROM tensile.jobs") == [{"owner": "bob"}]


@pytest.mark.parametrize("table", ["jobs", "models", "predictions", "serving_requests", "search_requests"])
@pytest.mark.parametrize("mode", ["SHARE", "ACCESS EXCLUSIVE"])
def test_a_user_cannot_lock_tables_that_all_use(site, table, mode):
    assert site.refusal(f"BEGIN; LOCK TABLE tensile.{table} IN {mode} MODE")[0] == "42501"


def test_a_role_made_anew_under_an_old_name_inherits_nothing(site):
    for statement in ("CREATE ROLE passing LOGIN", "SELECT tensile_grant_usage('passing')"):
        site.execute(statement)
    site.execute("GRANT SELECT ON images_table TO passing")
    site.execute(SUBMIT, role="passing")
    site.execute("DROP OWNED BY passing; DROP ROLE passing; CREATE ROLE passing LOGIN")
    try:
        site.execute("GRANT tensile_user TO passing")
        assert site.value("SELECT count(*) FROM tensile.jobs", role="passing") == 0
        assert site.value("SELECT count(*) FROM tensile.progress", role="passing") == 0
    finally:
        site.execute("DROP OWNED BY passing; DROP ROLE passing")


@pytest.mark.parametrize(
    ("setup", "refusal"),
    [
        (
            "REVOKE SELECT ON images_table FROM alice",
            (
                "42501",
                'permission denied for column "image" of public.images_table',
                "Ask its owner: GRANT SELECT ON public.images_table TO alice.",
            ),
        ),
        (
            "REVOKE SELECT ON images_table FROM alice; GRANT SELECT (id, image) ON images_table TO alice",
            (
                "42501",
                'permission denied for column "label" of public.images_table',
                "Ask its owner: GRANT SELECT ON public.images_table TO alice.",
            ),
        ),
    ],
)
def test_a_table_that_the_caller_may_not_read_is_refused(site, setup, refusal):
    site.execute(setup)
    assert site.refusal(SUBMIT) == refusal
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0


def test_rights_on_the_columns_that_are_used_are_enough(site):
    site.execute("REVOKE SELECT ON images_table FROM alice")
    site.execute("GRANT SELECT (image, label) ON images_table TO alice")
    assert site.job(site.value(SUBMIT, role="alice"))["features"] == ["image"]


def test_a_table_in_a_schema_without_usage_is_refused_even_by_oid(site):
    site.execute("CREATE SCHEMA closed; CREATE TABLE closed.t AS TABLE images_table")
    site.execute("GRANT SELECT ON closed.t TO alice")
    oid = site.value("SELECT 'closed.t'::regclass::oid")
    assert site.refusal(f"SELECT tensile_submit('vgg16', {oid}::oid)") == (
        "42501",
        "permission denied for schema closed",
        "Ask its owner: GRANT USAGE ON SCHEMA closed TO alice.",
    )


def test_rows_hidden_by_row_level_security_do_not_count(site):
    site.execute("ALTER TABLE images_table ENABLE ROW LEVEL SECURITY")
    assert site.refusal(SUBMIT)[:2] == ("22000", "public.images_table has no rows")
    site.execute("CREATE POLICY one ON images_table TO alice USING (id = 1)")
    assert site.job(site.value(SUBMIT, role="alice"))["state"] == "queued"


def test_a_view_whose_owner_has_lost_the_right_is_refused(site):
    site.execute("GRANT CREATE ON SCHEMA public TO bob")
    site.execute("CREATE VIEW v AS SELECT * FROM images_table", role="bob")
    site.execute("GRANT SELECT ON v TO alice", role="bob")
    site.execute("REVOKE SELECT ON images_table FROM bob")
    refusal = ("42501", "permission denied for table images_table", None)
    assert site.refusal("SELECT tensile_submit('vgg16', 'v')") == refusal


def test_the_loopback_connection_acts_as_the_caller(site):
    for role in ("alice", "carol"):
        with site.connect("postgres") as connection:
            connection.execute(f"SET SESSION AUTHORIZATION {role}")
            seen = connection.execute(
                "SELECT tensile.insert_job_visibly(tensile.sign(), "
                """'{"kind": "train", "source_name": "t", "source_oid": 1259}') AS job"""
            ).fetchone()
        assert site.job(seen["job"])["owner"] == role


def test_the_secret_of_the_loopback_is_for_administrators_of_the_server(site):
    site.execute("INSERT INTO tensile.settings VALUES ('loopback', 'password=secret')")
    names = "SELECT array_agg(name ORDER BY name) FROM tensile.settings"
    assert site.value(names, role="alice") == ["contents", "udf_digest", "version"]
    assert site.value(names, role="carol") == ["contents", "udf_digest", "version"]


def test_the_worker_writes_the_jobs_of_every_user(site, job_of_alice):
    site.execute(SUBMIT, role="bob")
    with site.connect(PUPPET_LOGIN) as connection:
        assert connection.execute("UPDATE tensile.jobs SET state = 'running'").rowcount == 2


@pytest.mark.parametrize(
    ("role", "refusal"),
    [
        (
            "postgres",
            (
                "42501",
                '"postgres" is a superuser, and every worker could become it',
                "Grant an ordinary role, and SET ROLE to it for training.",
            ),
        ),
        ("alic", ("42704", 'no role "alic"', 'Did you mean "alice"?')),
        (None, ("22023", "the role is NULL", "Give a user's role.")),
        (
            "tensile_worker",
            ("22023", '"tensile_worker" is a group of tensile_db itself', "Give a user's role."),
        ),
        ("pg_monitor", ("22023", '"pg_monitor" is a role of PostgreSQL itself', "Give a user's role.")),
        (
            "pg_execute_server_program",
            ("22023", '"pg_execute_server_program" is a role of PostgreSQL itself', "Give a user's role."),
        ),
    ],
)
def test_usage_is_not_granted_to_what_is_no_user(site, role, refusal):
    assert site.refusal("SELECT tensile_grant_usage(%s)", role, role="postgres") == refusal


def test_granting_usage_again_changes_nothing(site):
    members = "SELECT count(*) FROM pg_auth_members WHERE member = 'tensile_worker'::regrole"
    before = site.value(members)
    site.execute("SELECT tensile_grant_usage('alice')")
    assert site.value(members) == before
