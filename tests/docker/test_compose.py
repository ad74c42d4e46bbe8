"""`docker compose up`, from images built of this checkout to a trained model, and what comes after.

Run by `make check-docker`, which needs Docker with Compose; other targets leave it alone.
"""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

COMPOSE = Path(__file__).parents[2] / "docker" / "compose.yaml"

#: Until the images' PyTorch is loaded, on a busy machine.
PATIENCE_S = 300

HOSTILE = """it's "a" %40 secret"""


class Site:
    """What `compose.yaml` makes, under a project's name and on a port of its own."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {
            "POSTGRES_PASSWORD": HOSTILE,
            "TENSILE_WORKER_PASSWORD": HOSTILE + " worker",
            "TENSILE_USER_PASSWORD": "one",
            "POSTGRES_PORT": str(self.port),
            # Else those of a docker/.env would be taken.
            "POSTGRES_DB": "tensile",
            "TENSILE_USER": "analyst",
        }
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        program = ["docker", "compose"] if plugin.returncode == 0 else [shutil.which("docker-compose")]
        self._command = [*program, "-f", COMPOSE, "-p", f"tensile_check_{os.getpid()}"]

    def compose(self, *arguments):
        subprocess.run([*self._command, *arguments], env=os.environ | self.environment, check=True)

    def connect(self, user="analyst", password="one"):
        return psycopg.connect(
            host="127.0.0.1", port=self.port, dbname="tensile", user=user, password=password, autocommit=True
        )

    def wait_for_worker(self):
        """Wait until a worker is ready; return its id."""
        deadline = time.monotonic() + PATIENCE_S
        with self.connect() as connection:
            ready = "SELECT max(id) FROM tensile.workers WHERE state = 'ready'"
            while (worker := connection.execute(ready).fetchone()[0]) is None:
                assert time.monotonic() < deadline, "no worker is ready"
                time.sleep(0.5)
        return worker


@pytest.fixture(scope="module")
def site():
    site = Site()
    try:
        site.compose("up", "--build", "--detach")
        yield site
    finally:
        site.compose("down", "--volumes", "--timeout", "60")


def test_a_user_trains_and_predicts_at_once(site):
    site.wait_for_worker()
    with site.connect("postgres", HOSTILE) as connection:
        connection.execute("GRANT CREATE ON SCHEMA public TO analyst")
    with site.connect() as connection:
        connection.execute(
            "CREATE TABLE points AS SELECT i AS id, (i % 7)::real AS a, (i % 5)::real AS b,"
            " CASE WHEN i % 7 > i % 5 THEN 'up' ELSE 'down' END AS label FROM generate_series(1, 400) i"
        )
        connection.execute("ALTER TABLE points ADD PRIMARY KEY (id)")
        (accuracy,) = connection.execute(
            "SELECT metrics->>'validation_accuracy' FROM tensile_train('mlp', 'points', 'label', '{a, b}',"
            " 'm', epochs => 30, optimizer => 'adam', learning_rate => 0.01)"
        ).fetchone()
        assert float(accuracy) > 0.9
        (right,) = connection.execute(
            "SELECT avg((tensile_predict('m', p) = label)::int) FROM points p"
        ).fetchone()
        assert right > 0.9


def test_a_job_goes_on_after_all_was_down(site):
    site.wait_for_worker()
    with site.connect() as connection:
        (job,) = connection.execute(
            "SELECT tensile_submit('mlp', 'points', 'label', '{a, b}', 'long', epochs => 3000,"
            " batch_size => 8)"
        ).fetchone()
        progress = "SELECT epoch FROM tensile.progress WHERE job_id = %s"
        deadline = time.monotonic() + PATIENCE_S
        while (connection.execute(progress, [job]).fetchone()[0] or 0) < 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    # Passwords in docker/.env may change as well.
    site.environment["TENSILE_USER_PASSWORD"] = "another"
    site.compose("down")
    site.compose("up", "--detach")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with site.connect(password="another") as connection:
                break
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.5)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        site.connect(password="one")
    with site.connect(password="another") as connection:
        resumed = "SELECT attempt > 1 AND epoch >= 1 FROM tensile.jobs WHERE id = %s"
        while connection.execute(resumed, [job]).fetchone() != (True,):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        connection.execute("SELECT tensile_cancel(%s)", [job])
