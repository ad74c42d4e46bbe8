"""tensile_train: waits for a job that others see, tells its progress, and ends it when cancelled."""

import threading
import time
from functools import partial

import psycopg
import pytest

from tests.at_once import at_once
from tests.fixtures.db import PlayedWorker, Puppet
from tests.jobs.heard_notices import heard_by
from tests.patience import PATIENCE_S, wait_until

TRAIN = "SELECT * FROM tensile_train('vgg16', 'images_table', epochs => 2)"


def a_moment(_):
    time.sleep(0.3)


def learn(puppet, job, wait_for=a_moment):
    """Train as a worker would, as far as a job's row shows it; wait_for: a line of progress."""
    puppet.update(job, phase="training", epoch=1, iteration=0, iterations_total=8)
    puppet.update(
        job,
        epoch=2,
        iteration=7,
        loss=0.5,
        samples_per_second=320.4,
        vanilla_peak_nbytes=4 * 2**20,
        measured_peak_nbytes=2**20,
    )
    wait_for(
        f"job {job['id']}: training, epoch 2 of 2, iteration 7 of 8, loss 0.5, 320 rows/s,"
        " 1.0 MiB of device memory instead of 4.0 MiB"
    )
    puppet.update(job, phase="saving")
    wait_for(f"job {job['id']}: saving")
    result = {"loss": 0.25, "metrics": {"accuracy": 0.9}, "seconds": 1.5}
    puppet.succeed(job, model_version=1, result=result)


def cancel_when_asked(puppet, job):
    puppet.update(job, phase="training")
    puppet.wait_for_cancel(job)


def idle(puppet, job):
    """Let the job run on."""


def test_train_returns_what_came_of_the_job(site):
    with Puppet(site, learn):
        (row,) = site.execute(TRAIN, role="alice")
    assert row == {
        "job_id": 1,
        "state": "succeeded",
        "model": "vgg16",
        "version": 1,
        "epochs": 2,
        "loss": 0.25,
        "metrics": {"accuracy": 0.9},
        "seconds": 1.5,
        "peak_bytes": 1048576,
        "saved": 0.75,
    }


def test_the_epochs_of_a_training_that_stopped_early_are_those_that_were_trained(site):
    with Puppet(site, lambda puppet, job: puppet.succeed(job, model_version=1, result={"epochs": 1})):
        (row,) = site.execute(TRAIN, role="alice")
    assert row["epochs"] == 1


def test_progress_comes_as_notices_while_the_job_runs(site):
    lines = []

    def wait_for(line):
        wait_until(
            lambda: any(heard.startswith(line) for heard in lines),
            lambda: f"nobody was told {line}, but {lines}",
        )

    def learn_as_heard(puppet, job):
        learn(puppet, job, wait_for)

    with Puppet(site, learn_as_heard), site.connect("alice") as connection:
        connection.add_notice_handler(lambda notice: lines.append(notice.message_primary))
        connection.execute(TRAIN)
    assert lines[-1].startswith("job 1: saving")


def test_train_inside_a_transaction_trains_at_once_and_stays_trained_after_rollback(site):
    with Puppet(site, learn), site.connect("alice", autocommit=False) as connection:
        connection.execute(TRAIN)
        connection.rollback()
    assert site.job(1)["state"] == "succeeded"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_train_waits_at_isolation_levels_whose_snapshot_is_older_than_the_job(site, level):
    with Puppet(site, learn), site.connect("alice", autocommit=False) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        connection.execute("SELECT 1")
        assert connection.execute(TRAIN).fetchone()["loss"] == 0.25


def test_train_works_in_a_read_only_transaction(site):
    with Puppet(site, learn), site.connect("alice", autocommit=False) as connection:
        connection.execute("SET TRANSACTION READ ONLY")
        assert connection.execute(TRAIN).fetchone()["state"] == "succeeded"


def test_a_failed_job_raises_its_own_error(site):
    def fail(puppet, job):
        puppet.fail(job, "22P03", "row 17: no image can be decoded", "Delete it, or fix it.")

    with Puppet(site, fail):
        assert site.refusal(TRAIN) == ("22P03", "row 17: no image can be decoded", "Delete it, or fix it.")


def test_a_failure_without_a_hint_has_none(site):
    with Puppet(site, lambda puppet, job: puppet.fail(job, "38000", "a kernel failed")):
        assert site.refusal(TRAIN) == ("38000", "a kernel failed", None)


def test_ctrl_c_ends_the_job(site):
    with Puppet(site, cancel_when_asked), site.connect("alice") as connection:
        site.soon_after_a_job(connection.cancel_safe)
        with pytest.raises(psycopg.errors.QueryCanceled) as caught:
            connection.execute(TRAIN)
        assert caught.value.diag.message_primary == "canceling statement due to user request"
        assert "Traceback" not in caught.value.diag.context
        # The session is as good as before.
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    job = site.job(1)
    assert (job["cancel_requested"], job["state"]) == (True, "cancelled")


def test_ctrl_c_pressed_again_and_again_ends_the_job(site):
    def press(connection):
        for _ in range(4):
            connection.cancel_safe()
            time.sleep(0.002)

    with Puppet(site, cancel_when_asked), site.connect("alice") as connection:
        site.soon_after_a_job(press, connection)
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(TRAIN)
    assert site.job(1)["state"] == "cancelled"


def test_statement_timeout_ends_the_job(site):
    with Puppet(site, cancel_when_asked), site.connect("alice") as connection:
        connection.execute("SET statement_timeout = '500ms'")
        with pytest.raises(psycopg.errors.QueryCanceled) as caught:
            connection.execute(TRAIN)
    assert caught.value.diag.message_primary == "canceling statement due to statement timeout"
    assert site.job(1)["state"] == "cancelled"


def test_ctrl_c_ends_a_job_that_is_read_over_the_loopback(site):
    with Puppet(site, cancel_when_asked), site.connect("alice", autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        site.soon_after_a_job(connection.cancel_safe)
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(TRAIN)
    assert site.job(1)["state"] == "cancelled"


def test_a_job_cancelled_by_another_session_ends_the_wait(site):
    with Puppet(site, cancel_when_asked):
        canceller = site.soon_after_a_job(partial(site.execute, "SELECT tensile_cancel(1)", role="alice"))
        assert site.refusal(TRAIN) == ("57014", "job 1 was cancelled", None)
        canceller.join()


def test_an_admin_cancels_the_job_of_a_user(site):
    with Puppet(site, cancel_when_asked):
        canceller = site.soon_after_a_job(partial(site.execute, "SELECT tensile_cancel(1)", role="carol"))
        assert site.refusal(TRAIN)[0] == "57014"
        canceller.join()


def test_without_a_worker_train_is_refused_at_once(site):
    assert site.refusal(TRAIN) == (
        "55000",
        "no worker is running",
        "Start one: tensile-db worker --dsn ... ; or queue the job with tensile_submit.",
    )
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0


def test_a_worker_that_has_been_silent_is_not_alive(site):
    site.execute(
        "INSERT INTO tensile.workers (login, host, pid, device_name, version, state, heartbeat_at)"
        " VALUES ('puppet_login', 'here', 1, 'cpu', '0', 'ready', now() - interval '31 s')"
    )
    assert site.refusal(TRAIN)[0] == "55000"


def test_a_submitter_that_no_worker_may_become_is_refused(site):
    site.execute("REVOKE alice FROM tensile_worker")
    try:
        with Puppet(site, idle):
            assert site.refusal(TRAIN) == (
                "42501",
                'no worker may read tables as the role "alice"',
                "Ask an administrator: SELECT tensile_grant_usage('alice').",
            )
            sqlstate, message, hint = site.refusal(TRAIN, role="postgres")
            assert (sqlstate, message) == ("42501", 'no worker may read tables as the role "postgres"')
            assert hint.startswith("Workers never become a superuser: SET ROLE to an ordinary role")
    finally:
        site.execute("GRANT alice TO tensile_worker")


def test_a_table_made_by_the_same_transaction_is_refused_for_no_worker_sees_it(site):
    site.execute("GRANT CREATE ON SCHEMA public TO alice")
    with Puppet(site, learn), site.connect("alice", autocommit=False) as connection:
        connection.execute("CREATE TABLE fresh AS SELECT ''::bytea AS image, 1 AS label")
        with pytest.raises(psycopg.errors.UndefinedTable) as caught:
            connection.execute("SELECT * FROM tensile_train('vgg16', 'fresh')")
    assert caught.value.diag.message_primary == (
        "public.fresh was made by this transaction, and a worker cannot see it yet"
    )
    assert caught.value.diag.message_hint.startswith("COMMIT first; or use tensile_submit")


@pytest.mark.parametrize(
    ("before", "times"),
    [
        ("SELECT FROM images_table", 0),
        ("UPDATE images_table SET label = label", 1),
        ("INSERT INTO images_table SELECT 99, image, label FROM images_table LIMIT 1", 1),
        ("DELETE FROM images_table WHERE id = 1", 1),
    ],
)
def test_whoever_has_changed_rows_is_told_that_no_worker_sees_that(site, before, times):
    site.execute("GRANT ALL ON images_table TO alice")
    with Puppet(site, learn), site.connect("alice", autocommit=False) as connection:
        heard = heard_by(connection)
        connection.execute(before)
        connection.execute(TRAIN)
    said = "what this transaction has changed in public.images_table is not seen before it is committed"
    assert heard.count(said) == times


def test_what_an_earlier_transaction_has_changed_is_seen_and_nobody_is_told(site):
    site.execute("GRANT ALL ON images_table TO alice")
    with Puppet(site, learn), site.connect("alice") as connection:
        heard = heard_by(connection)
        connection.execute("UPDATE images_table SET label = label")
        connection.execute(TRAIN)
    assert not any("committed" in line for line in heard)


READ_WITH = {
    "partition": (
        "CREATE TABLE read (LIKE images_table) PARTITION BY RANGE (id);"
        "CREATE TABLE changed PARTITION OF read DEFAULT; INSERT INTO read SELECT * FROM images_table"
    ),
    "child": (
        "CREATE TABLE read AS SELECT * FROM images_table;"
        "CREATE TABLE changed () INHERITS (read); INSERT INTO changed SELECT * FROM images_table"
    ),
    "what a view of a view is of": (
        "CREATE TABLE changed AS SELECT * FROM images_table; CREATE VIEW between AS SELECT * FROM changed;"
        "CREATE VIEW read AS SELECT * FROM between"
    ),
}


@pytest.mark.parametrize("made", READ_WITH.values(), ids=READ_WITH)
def test_changes_of_what_is_read_with_a_source_are_told_and_its_locks_refused(site, made):
    site.execute(f"{made}; GRANT ALL ON read, changed TO alice")
    with Puppet(site, learn), site.connect("alice", autocommit=False) as connection:
        heard = heard_by(connection)
        connection.execute("UPDATE changed SET label = label")
        connection.execute("SELECT * FROM tensile_train('vgg16', 'read')")
        connection.commit()
        connection.execute("TRUNCATE changed")
        connection.execute("INSERT INTO changed SELECT * FROM images_table")
        # The worker would wait for this session, which waits for it.
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="this transaction has locked"):
            connection.execute("SELECT * FROM tensile_train('vgg16', 'read')")
    assert heard[0].startswith("what this transaction has changed in public.read")


def test_the_statement_that_trains_and_changes_a_table_hears_nothing_of_changes(site):
    site.execute("GRANT ALL ON images_table TO alice")
    with Puppet(site, learn), site.connect("alice") as connection:
        heard = heard_by(connection)
        connection.execute("INSERT INTO images_table SELECT 99, image, label FROM images_table LIMIT 1")
        connection.execute(
            "WITH w AS (UPDATE images_table SET label = label FROM"
            " tensile_train('vgg16', 'images_table') RETURNING 1) SELECT FROM w"
        )
    assert not any("changed" in line for line in heard)


def test_two_connections_train_at_once_and_hear_of_their_own_job_alone(site):
    both_run = threading.Barrier(2, timeout=PATIENCE_S)
    heard = {}

    def learn_together(puppet, job):
        both_run.wait()
        learn(puppet, job)

    def train(role):
        with site.connect(role) as connection:
            heard[role] = heard_by(connection)
            connection.execute(TRAIN)

    with Puppet(site, learn_together), Puppet(site, learn_together):
        at_once(train, ("alice", "bob"))
    jobs = {row["owner"]: row["id"] for row in site.execute("SELECT owner, id FROM tensile.jobs")}
    for role, lines in heard.items():
        assert {line.split(":")[0] for line in lines} == {f"job {jobs[role]}"}


def test_a_role_with_a_hostile_name_trains_as_itself(site):
    name = 'o\'neil "x" \\ -c role=postgres ☃'
    quoted = '"' + name.replace('"', '""') + '"'
    site.execute(f"CREATE ROLE {quoted} LOGIN")
    try:
        site.execute("SELECT tensile_grant_usage(%s)", name)
        site.execute(f"GRANT SELECT ON images_table TO {quoted}")
        with Puppet(site, learn):
            site.execute(TRAIN, role=name)
        assert site.job(1)["owner"] == name
    finally:
        site.execute(f"DROP OWNED BY {quoted}")
        site.execute(f"DROP ROLE {quoted}")


def test_when_the_server_cannot_reach_itself_the_hint_names_the_other_way(site):
    site.execute("INSERT INTO tensile.settings VALUES ('loopback', 'host=/nowhere')")
    with Puppet(site, learn):
        sqlstate, message, hint = site.refusal(TRAIN)
    assert sqlstate == "08001"
    assert message.startswith("the server cannot connect to itself: ")
    assert hint.startswith("Use tensile_submit, COMMIT, then tensile_wait")


def test_who_waits_is_told_why_no_worker_takes_the_job(site):
    with PlayedWorker(site).connection, site.connect("alice") as connection:
        heard = heard_by(connection)
        connection.execute("SET statement_timeout = '6s'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(TRAIN.replace(")", """, options => '{"device": "cuda:0"}')"""))
    assert heard == [
        "job 1: queued",
        'job 1: queued, waits for a worker with device "cuda:0": none is alive',
    ]


def test_a_job_whose_worker_is_silent_is_waited_for_and_said_so(site):
    def fall_silent(puppet, job):
        puppet.execute(
            "UPDATE tensile.jobs SET heartbeat_at = now() - interval '40 s' WHERE id = %s", job["id"]
        )
        time.sleep(1)
        puppet.succeed(job)

    with Puppet(site, fall_silent), site.connect("alice") as connection:
        heard = heard_by(connection)
        connection.execute(TRAIN)
    assert sum("no worker has been heard of for 4" in line for line in heard) == 1
