"""Jobs whose session is gone while it waited for them."""

import contextlib
import os
import socket
import threading

import psycopg
import pytest

from tests.fixtures.db import Puppet
from tests.patience import wait_until

TRAIN = "SELECT * FROM tensile_train('vgg16', 'images_table')"
ENDLESS = "SELECT * FROM tensile_train('mlp', 'points', features => '{a,b}', epochs => 1000000)"
CANCEL = "SELECT tensile.cancel_abandoned()"


class Waiting:
    """A session that waits for a job, in a thread of its own."""

    def __init__(self, connection, statement):
        self.pid = connection.info.backend_pid
        self._connection = connection
        self._thread = threading.Thread(target=self._run, args=(statement,))
        self._thread.start()

    def _run(self, statement):
        with contextlib.suppress(psycopg.Error):
            self._connection.execute(statement)

    def vanish(self):
        """Be gone as a client that was killed is: the kernel shuts its socket."""
        with socket.socket(fileno=os.dup(self._connection.fileno())) as connected:
            connected.shutdown(socket.SHUT_RDWR)

    def end(self):
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def waiting(site):
    """A session of alice's that waits for job 1."""
    with site.connect("alice") as connection:
        session = Waiting(connection, TRAIN)
        try:
            wait_until(lambda: site.value("SELECT count(*) FROM tensile.jobs"))
            yield session
        finally:
            site.execute("SELECT pg_terminate_backend(%s, 10000)", session.pid)
            session.end()


def terminate(site, pid):
    """Terminate a backend and wait until it is gone."""
    assert site.value("SELECT pg_terminate_backend(%s, 10000)", pid)


def idle(puppet, job):
    """Let the job run on."""


def test_a_running_job_whose_session_is_terminated_is_to_stop(site):
    with Puppet(site, idle) as puppet, waiting(site) as session:
        assert puppet.value(CANCEL) == 0
        terminate(site, session.pid)
        assert puppet.value(CANCEL) == 1
        assert puppet.value(CANCEL) == 0
    assert site.job(1)["cancel_requested"]
    assert site.execute("SELECT job_id, kind, detail FROM tensile.job_events") == [
        {"job_id": 1, "kind": "abandoned", "detail": {"client_pid": session.pid}}
    ]


def test_a_queued_job_whose_session_is_terminated_ends_at_once(site):
    site.execute(
        "INSERT INTO tensile.workers (login, host, pid, device_name, version, state)"
        " VALUES ('puppet_login', 'here', 1, 'puppet', '0', 'ready')"
    )
    with waiting(site) as session:
        terminate(site, session.pid)
        assert site.value(CANCEL) == 1
    job = site.job(1)
    assert (job["state"], job["error_sqlstate"]) == ("cancelled", "57014")


def test_a_process_with_the_number_of_one_that_is_gone_is_another_one(site):
    with Puppet(site, idle), waiting(site):
        site.execute("UPDATE tensile.jobs SET client_started_at = client_started_at - interval '1 us'")
        assert site.value(CANCEL) == 1


def test_a_submitted_job_outlives_its_session(site):
    with site.connect("alice") as connection:
        pid = connection.info.backend_pid
        connection.execute("SELECT tensile_submit('vgg16', 'images_table')")
    site.execute("SELECT pg_terminate_backend(%s, 10000)", pid)
    assert site.value(CANCEL) == 0
    assert site.job(1)["client_pid"] == pid


def test_a_job_that_others_hold_is_not_waited_for(site):
    with Puppet(site, idle), waiting(site) as session:
        terminate(site, session.pid)
        with (
            site.connect("carol", autocommit=False) as holder,
            psycopg.connect(site.admin, options="-c lock_timeout=1s") as looking,
        ):
            holder.execute("UPDATE tensile.jobs SET cancel_requested = true")
            assert looking.execute(CANCEL).fetchone() == (0,)


def test_only_workers_look_for_jobs_without_a_session(site):
    assert site.refusal(CANCEL)[0] == "42501"
    assert site.refusal(CANCEL, role="carol")[0] == "42501"


@pytest.fixture
def training(database, start_worker):
    """A session of anna's that waits for a training without end, on a real worker."""
    start_worker()
    database.wait_for_worker()
    with database.connect() as anna:
        session = Waiting(anna, ENDLESS)
        try:
            wait_until(lambda: database.execute("SELECT id FROM tensile.jobs WHERE iteration > 3"))
            yield session
        finally:
            database.execute("SELECT pg_terminate_backend(%s, 10000)", session.pid)
            session.end()


def test_a_worker_ends_the_job_of_a_session_that_was_terminated(database, training):
    (job,) = database.execute("SELECT id FROM tensile.jobs")
    database.execute("SELECT pg_terminate_backend(%s)", training.pid)
    row = database.wait(job["id"])
    assert (row["state"], row["error_sqlstate"]) == ("cancelled", "57014")


def test_a_worker_ends_the_job_of_a_client_that_vanished(database, training):
    """Without a word: its socket is shut, which the server learns when it next tells of the progress."""
    (job,) = database.execute("SELECT id FROM tensile.jobs")
    training.vanish()
    row = database.wait(job["id"])
    assert (row["state"], row["error_sqlstate"]) == ("cancelled", "57014")
