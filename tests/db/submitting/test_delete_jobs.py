"""tensile_delete_jobs: whose jobs it deletes and which, what goes with them and what stays."""

import pytest

from tests.at_once import at_once
from tests.jobs.inserted_rows import LEFT_BY_A_JOB, add_job, add_model

DELETE = "SELECT tensile_delete_jobs(now() - interval '90 days')"
#: Half of them before that.
MANY = 4000


def jobs_left(site):
    return [row["id"] for row in site.execute("SELECT id FROM tensile.jobs ORDER BY id")]


def test_ones_own_jobs_that_ended_before_then_are_deleted(site):
    for state in ("succeeded", "failed", "cancelled"):
        add_job(site, state=state)
    later, others = add_job(site, days_ago=80), add_job(site, "bob")
    assert site.value(DELETE, role="alice") == 3
    assert jobs_left(site) == [later, others]
    assert site.value(DELETE, role="alice") == 0


@pytest.mark.parametrize("state", ["queued", "waiting", "running", "paused"])
def test_jobs_that_have_not_ended_stay(site, state):
    job = add_job(site, state=state, days_ago=None)
    assert site.value("SELECT tensile_delete_jobs('infinity')", role="carol") == 0
    assert jobs_left(site) == [job]


def test_what_ended_just_now_stays_for_whoever_waits_for_it(site):
    job = add_job(site, days_ago=0)
    assert site.value("SELECT tensile_delete_jobs('infinity')", role="alice") == 0
    site.execute("UPDATE tensile.jobs SET finished_at = now() - interval '61 seconds'")
    assert site.value("SELECT tensile_delete_jobs('-infinity')", role="alice") == 0
    assert jobs_left(site) == [job]
    assert site.value("SELECT tensile_delete_jobs('infinity')", role="alice") == 1


def test_administrators_and_superusers_delete_those_of_a_role_or_of_all(site):
    for owner in ("alice", "alice", "bob"):
        add_job(site, owner)
    of_role = "SELECT tensile_delete_jobs(now(), %s)"
    assert site.value(of_role, "alice", role="carol") == 2
    add_job(site, "carol")
    assert site.value(of_role, "carol", role="carol") == 1
    add_job(site, "alice")
    assert site.value(DELETE, role="carol") == 2
    add_job(site, "alice")
    assert site.value(DELETE) == 1


def test_all_that_a_job_left_goes_but_its_models_and_graphs(site):
    job = add_job(site)
    site.execute(LEFT_BY_A_JOB.format(job=job))
    assert site.value(DELETE, role="alice") == 1
    of_jobs = site.execute(
        "SELECT table_name FROM information_schema.columns WHERE table_schema = 'tensile'"
        " AND column_name = 'job_id' AND table_name IN (SELECT relname FROM pg_class WHERE relkind = 'r')"
    )
    left = {name: site.value(f"SELECT count(*) FROM tensile.{name}") for (name,) in map(dict.values, of_jobs)}
    assert {name for name, count in left.items() if count} == {"models"}
    assert site.execute("SELECT job_id, name FROM tensile.models") == [{"job_id": None, "name": "m"}]
    assert site.value("SELECT count(*) FROM tensile.model_weights") == 1
    assert site.value("SELECT count(*) FROM tensile.graphs") == 1


def test_a_model_goes_on_being_served_when_the_job_that_made_it_is_gone(site):
    model = add_model(site)
    job = add_job(site)
    site.execute("UPDATE tensile.models SET job_id = %s", job)
    serving = add_job(site, kind="serve", state="running", days_ago=None)
    site.execute("UPDATE tensile.jobs SET model_id = %s WHERE id = %s", model, serving)
    assert site.value(DELETE, role="alice") == 1
    assert jobs_left(site) == [serving]
    assert site.value("SELECT id FROM tensile.models") == model


def test_trials_stay_until_their_search_goes_and_it_until_all_of_them_have_ended(site):
    search = add_job(site, kind="search", state="running", days_ago=None)
    ended = add_job(site, search=search)
    ending = add_job(site, search=search, state="running", days_ago=None)
    for number, job in enumerate((ended, ending)):
        site.execute(
            "INSERT INTO tensile.search_trials (search_id, number, job_id, params) VALUES (%s, %s, %s, '{}')",
            *(search, number, job),
        )
    assert site.value(DELETE, role="alice") == 0
    finish = "UPDATE tensile.jobs SET state = 'cancelled', finished_at = now() - %s::interval WHERE id = %s"
    site.execute(finish, "91 days", search)
    assert site.value(DELETE, role="alice") == 0
    site.execute(finish, "89 days", ending)
    assert site.value(DELETE, role="alice") == 0
    site.execute(finish, "91 days", ending)
    assert site.value(DELETE, role="alice") == 3
    assert site.value("SELECT count(*) FROM tensile.search_trials") == 0


def test_of_two_calls_at_once_neither_waits_and_each_says_what_it_deleted(site):
    site.execute(
        "INSERT INTO tensile.jobs (state, phase, submitted_by, owner, source_oid, source_name, finished_at)"
        " SELECT 'succeeded', 'done', oid, rolname, 0, 'points', now() - make_interval(days => i %% 2 * 100)"
        " FROM pg_roles, generate_series(1, %s) i WHERE rolname = 'alice'",
        MANY,
    )
    with site.connect("alice", autocommit=False) as first:
        (deleted,) = first.execute(DELETE).fetchone().values()
        assert deleted == MANY // 2
        with site.connect("carol") as second:
            second.execute("SET lock_timeout = '1s'")
            assert second.execute(DELETE).fetchone() == {"tensile_delete_jobs": 0}
        first.rollback()
    assert sum(at_once(lambda role: site.value(DELETE, role=role), ["alice", "carol"])) == MANY // 2
    assert len(jobs_left(site)) == MANY // 2


def test_a_worker_goes_on_with_other_jobs_meanwhile(site):
    job = add_job(site, state="running", days_ago=None)
    add_job(site)
    with site.connect("alice", autocommit=False) as owner, site.connect("puppet_login") as worker:
        assert owner.execute(DELETE).fetchone() == {"tensile_delete_jobs": 1}
        worker.execute("SET lock_timeout = '1s'")
        worker.execute("UPDATE tensile.jobs SET heartbeat_at = now() WHERE id = %s", [job])
        worker.execute("INSERT INTO tensile.job_events (job_id, kind) VALUES (%s, 'started')", [job])
        site.value("SELECT tensile_submit('vgg16', 'images_table')", role="alice")
    assert job in jobs_left(site)


def test_a_real_worker_goes_on_and_the_model_of_a_deleted_job_can_be_used(database, start_worker):
    start_worker()
    made = database.wait(database.submit("points"))
    under_way = database.submit("points", epochs=10**6)
    database.wait_until(under_way, lambda row: row["iteration"])
    database.execute(
        "UPDATE tensile.jobs SET finished_at = finished_at - interval '1 hour' WHERE id = %s", made["id"]
    )
    assert database.execute("SELECT tensile_delete_jobs(now()) AS n") == [{"n": 1}]
    reached = database.job(under_way)["iteration"]
    database.wait_until(under_way, lambda row: row["iteration"] > reached)
    using = {"model_id": made["model_id"], "optimizer": None, "learning_rate": None, "epochs": None}
    measured = database.wait(database.submit("points", kind="evaluate", **using))
    assert measured["state"] == "succeeded", measured["error_message"]
    database.ask(under_way, cancel_requested=True)
    assert database.wait(under_way)["state"] == "cancelled"


def test_what_cannot_be_is_refused(site):
    assert site.refusal("SELECT tensile_delete_jobs(NULL)") == (
        "22023",
        "ended_before is NULL",
        "Give an instant, as in tensile_delete_jobs(now() - interval '90 days').",
    )
    of_role = "SELECT tensile_delete_jobs(now(), %s)"
    assert site.refusal(of_role, "alise") == ("42704", 'no role "alise"', 'Did you mean "alice"?')
    assert site.refusal(of_role, "bob") == (
        "42501",
        'role "alice" may not delete jobs of role "bob"',
        "Leave the role out to delete yours, or ask a member of tensile_admin.",
    )
    assert site.refusal(DELETE, role="mallory")[0] == "42501"


@pytest.mark.parametrize("role", ["alice", None])
def test_device_time_that_counts_for_a_quota_is_not_deleted_by_its_user(site, role):
    add_job(site)
    site.execute("SELECT tensile_set_quota(%s, max_device_seconds => 10)", role)
    assert site.refusal(DELETE) == (
        "42501",
        'role "alice" has a quota of device time, and its jobs are the record of what it has used',
        "Ask a member of tensile_admin to delete them; they count for the quota no more then.",
    )
    assert site.value("SELECT tensile.delete_jobs(tensile.sign(), now(), NULL)", role="alice") == 0
    assert site.value(DELETE, role="carol") == 1


def test_the_function_behind_it_deletes_nothing_of_others(site):
    job = add_job(site, "bob")
    oid = site.value("SELECT oid FROM pg_roles WHERE rolname = 'bob'")
    assert site.value("SELECT tensile.delete_jobs(tensile.sign(), now(), %s::oid)", oid, role="alice") == 0
    assert site.value("SELECT tensile.delete_jobs(tensile.sign(), NULL, NULL)", role="carol") == 0
    assert jobs_left(site) == [job]


def test_inside_a_definers_function_no_job_is_deleted(site):
    job = add_job(site, "bob")
    site.execute("GRANT CREATE ON SCHEMA public TO bob")
    site.execute(
        f"CREATE FUNCTION delete_as_bob() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$ {DELETE} $$",
        role="bob",
    )
    sqlstate, message, _ = site.refusal("SELECT delete_as_bob()")
    assert sqlstate == "42501"
    assert message.startswith('role "alice" cannot delete jobs while it acts as role "bob"')
    assert jobs_left(site) == [job]
