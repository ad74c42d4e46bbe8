"""tensile_pause and tensile_resume, as a session has them: jobs that rest, and what is refused."""

import threading

import psycopg
import pytest

from tests.fixtures.db import Puppet

SUBMIT = "SELECT tensile_submit('vgg16', 'images_table')"
TRAIN = "SELECT * FROM tensile_train('vgg16', 'images_table')"
PAUSE = "SELECT tensile_pause(%s)"
RESUME = "SELECT tensile_resume(%s)"


@pytest.fixture
def job(site):
    return site.value(SUBMIT, role="alice")


def run(site, job):
    site.execute(
        "UPDATE tensile.jobs SET state = 'running', phase = 'training', worker_id = 1 WHERE id = %s", job
    )


def state_of(site, job):
    row = site.job(job)
    return row["state"], row["phase"], row["pause_requested"]


def test_a_queued_job_is_paused_at_once_with_no_worker_there_and_resumed(site, job):
    assert site.value(PAUSE, job, role="alice") is True
    assert state_of(site, job) == ("paused", "paused", True)
    with site.connect("puppet_login") as worker:
        worker.execute("LISTEN tensile_jobs")
        assert site.value(RESUME, job, role="alice") is True
        assert [notify.payload for notify in worker.notifies(timeout=5, stop_after=1)] == [str(job)]
    assert state_of(site, job) == ("queued", "queued", False)


def test_a_running_job_is_asked_to_rest_and_its_worker_is_told(site, job):
    run(site, job)
    with site.connect("puppet_login") as worker:
        worker.execute("LISTEN tensile_jobs")
        assert site.value(PAUSE, job, role="alice") is True
        assert [notify.payload for notify in worker.notifies(timeout=5, stop_after=1)] == [str(job)]
    assert state_of(site, job) == ("running", "training", True)


def test_a_pause_is_taken_back_before_the_worker_has_let_go(site, job):
    run(site, job)
    site.execute(PAUSE, job, role="alice")
    assert site.value(RESUME, job, role="alice") is True
    assert state_of(site, job) == ("running", "training", False)


def test_what_is_so_already_is_not_asked_again(site, job):
    assert site.value(RESUME, job, role="alice") is False
    site.execute(PAUSE, job, role="alice")
    assert site.value(PAUSE, job, role="alice") is False
    site.execute(RESUME, job, role="alice")
    run(site, job)
    assert site.value(RESUME, job, role="alice") is False
    site.execute(PAUSE, job, role="alice")
    assert site.value(PAUSE, job, role="alice") is False


def test_a_pause_rolled_back_was_never_asked(site, job):
    with site.connect("alice", autocommit=False) as connection:
        connection.execute(PAUSE, [job])
        connection.rollback()
    assert state_of(site, job) == ("queued", "queued", False)


@pytest.mark.parametrize(("call", "verb"), [(PAUSE, "be paused"), (RESUME, "be resumed")])
def test_a_job_that_has_ended_is_refused(site, job, call, verb):
    site.execute("UPDATE tensile.jobs SET state = 'failed'")
    assert site.refusal(call, job) == (
        "55000",
        f"job {job} has ended (failed) and cannot {verb}",
        "tensile.queue and tensile.progress have the jobs that have not.",
    )


def test_a_job_that_is_being_cancelled_cannot_be_paused(site, job):
    run(site, job)
    site.execute("SELECT tensile_cancel(%s)", job, role="alice")
    assert site.refusal(PAUSE, job) == (
        "55000",
        f"job {job} is being cancelled and cannot be paused",
        "A cancellation cannot be taken back; submit the job again.",
    )


def test_only_training_can_be_paused(site, job):
    site.execute("UPDATE tensile.jobs SET kind = 'predict'")
    assert site.refusal(PAUSE, job) == (
        "0A000",
        f"job {job} is of kind predict, and only training jobs can be paused",
        f"The others have nothing to go on from; tensile_cancel({job}) ends it.",
    )
    # Nor past the function.
    assert site.refusal("UPDATE tensile.jobs SET pause_requested = true")[0] == "23514"


@pytest.mark.parametrize("call", [PAUSE, RESUME])
def test_a_job_that_is_not_there_or_anothers_is_refused(site, job, call):
    assert site.refusal(call, 17) == ("42704", "no job 17", "tensile.jobs has the jobs that you may see.")
    assert site.refusal(call, job, role="bob")[:2] == ("42704", f"no job {job}")
    assert site.refusal(call, None)[:2] == ("22023", "job_id is NULL")
    assert site.refusal(call, job, role="mallory")[0] == "42501"
    assert state_of(site, job) == ("queued", "queued", False)


def test_an_admin_pauses_and_resumes_the_job_of_a_user(site, job):
    assert site.value(PAUSE, job, role="carol") is True
    assert site.value(RESUME, job, role="carol") is True


def test_a_paused_job_is_cancelled_at_once_and_leaves_nothing(site, job):
    site.execute(PAUSE, job, role="alice")
    site.execute("INSERT INTO tensile.checkpoints (job_id, iteration, attempt) VALUES (%s, 1, 1)", job)
    assert site.value("SELECT tensile_cancel(%s)", job, role="alice") is True
    row = site.job(job)
    assert (row["state"], row["phase"], row["error_sqlstate"]) == ("cancelled", "done", "57014")
    assert row["finished_at"] is not None
    assert site.value("SELECT count(*) FROM tensile.checkpoints") == 0


def test_paused_jobs_are_seen_and_have_no_place_in_line(site, job):
    second = site.value(SUBMIT, role="alice")
    site.execute(PAUSE, job, role="alice")
    places = site.execute("SELECT job_id, place, state FROM tensile.queue ORDER BY job_id", role="alice")
    assert places == [
        {"job_id": job, "place": None, "state": "paused"},
        {"job_id": second, "place": 1, "state": "queued"},
    ]
    progress = "SELECT state, phase, pause_requested FROM tensile.progress WHERE job_id = %s"
    assert site.execute(progress, job, role="alice") == [
        {"state": "paused", "phase": "paused", "pause_requested": True}
    ]


def test_a_wait_with_a_timeout_returns_a_paused_job_as_it_stands(site, job):
    site.execute(PAUSE, job, role="alice")
    (row,) = site.execute("SELECT state FROM tensile_wait(%s, 0.2)", job, role="alice")
    assert row["state"] == "paused"


def rest_then_learn():
    """Return a script by which a job rests when it is claimed for the first time."""
    claims = []

    def script(puppet, job):
        claims.append(job)
        if len(claims) == 1:
            puppet.update(job, phase="training")
            # As if a pause had been asked for in between, and its checkpoint were written.
            puppet.execute("UPDATE tensile.jobs SET pause_requested = true WHERE id = %s", job["id"])
            puppet.update(job, state="queued", worker_id=None, heartbeat_at=None)
        else:
            puppet.succeed(job, loss=0.5)

    return script


class Listening:
    """Lines that a session of alice's hears, and what each leads to."""

    def __init__(self, connection, reply):
        self.lines = []
        self._reply = reply
        connection.add_notice_handler(self._hear)

    def _hear(self, notice):
        self.lines.append(notice.message_primary)
        if "paused" in notice.message_primary:
            threading.Thread(target=self._reply).start()


def test_train_waits_for_a_paused_job_says_so_and_returns_what_came_of_it(site):
    with Puppet(site, rest_then_learn()), site.connect("alice") as connection:
        heard = Listening(connection, lambda: site.execute(RESUME, 1, role="alice"))
        row = connection.execute(TRAIN).fetchone()
    assert (row["state"], row["loss"]) == ("succeeded", 0.5)
    assert "job 1: paused, tensile_resume(1) lets it go on" in heard.lines


def test_a_statement_that_is_cancelled_while_its_job_is_paused_ends_the_job(site):
    with Puppet(site, rest_then_learn()), site.connect("alice") as connection:
        Listening(connection, connection.cancel_safe)
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(TRAIN)
    assert site.job(1)["state"] == "cancelled"


def test_a_paused_job_whose_session_is_gone_ends_at_once(site, job):
    site.execute(PAUSE, job, role="alice")
    site.execute("UPDATE tensile.jobs SET client_started_at = '2000-01-01'")
    assert site.value("SELECT tensile.cancel_abandoned()", role="puppet_login") == 1
    assert site.job(job)["state"] == "cancelled"
