"""`docker compose up`, from images built of this checkout to a trained model, and what comes after.

Run by `make check-docker`, which needs Docker with Compose; other targets leave it alone.
"""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.patience import wait_until

COMPOSE = Path(__file__).parents[2] / "docker" / "compose.yaml"

# The first build fetches gigabytes.
pytestmark = pytest.mark.timeout(7200)

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
            "TENSILE_TAG": "check",
            # Else those of a docker/.env would be taken.
            "POSTGRES_DB": "tensile",
            "TENSILE_USER": "analyst",
        }
        assert shutil.which("docker"), "this needs Docker with Compose"
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        program = ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]
        self._command = [*program, "-f", COMPOSE, "-p", f"tensile_check_{os.getpid()}"]

    def compose(self, *arguments):
        subprocess.run([*self._command, *arguments], env=os.environ | self.environment, check=True)

    def connect(self, user="analyst", password=None):
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            dbname="tensile",
            user=user,
            password=password or self.environment["TENSILE_USER_PASSWORD"],
            autocommit=True,
        )

    def up(self, *arguments):
        """Start everything; return once a worker is ready."""
        self.compose("up", "--detach", *arguments)
        with self.connect() as connection:
            wait_until(
                lambda: _first(connection, "SELECT count(*) FROM tensile.workers WHERE state = 'ready'")
            )


def _first(connection, query, *arguments):
    return connection.execute(query, arguments).fetchone()[0]


@pytest.fixture(scope="module")
def site():
    site = Site()
    try:
        site.up("--build")
        with site.connect("postgres", HOSTILE) as connection:
            connection.execute("GRANT CREATE ON SCHEMA public TO analyst")
        with site.connect() as connection:
            connection.execute(
                "CREATE TABLE points AS SELECT i AS id, (i % 7)::real AS a, (i % 5)::real AS b,"
                " CASE WHEN i % 7 > i % 5 THEN 'up' ELSE 'down' END AS label FROM generate_series(1, 400) i"
            )
            connection.execute("ALTER TABLE points ADD PRIMARY KEY (id)")
        yield site
    finally:
        site.compose("down", "--volumes", "--timeout", "60")


def test_a_user_trains_and_predicts(site):
    with site.connect() as connection:
        accuracy = _first(
            connection,
            "SELECT metrics->>'validation_accuracy' FROM tensile_train('mlp', 'points', 'label', '{a, b}',"
            " 'm', epochs => 30, optimizer => 'adam', learning_rate => 0.01)",
        )
        assert float(accuracy) > 0.9
        right = _first(connection, "SELECT avg((tensile_predict('m', p) = label)::int) FROM points p")
        assert right > 0.9


def test_a_job_goes_on_after_all_was_down_and_passwords_are_those_of_the_environment(site):
    iteration = "SELECT coalesce(iteration, 0) FROM tensile.jobs WHERE id = %s"
    with site.connect() as connection:
        job = _first(
            connection,
            "SELECT tensile_submit('mlp', 'points', 'label', '{a, b}', 'long', epochs => 30000,"
            " batch_size => 8)",
        )
        wait_until(lambda: _first(connection, iteration, job) > 100)
    site.compose("down")
    former = site.environment["TENSILE_USER_PASSWORD"]
    site.environment["TENSILE_USER_PASSWORD"] = "another"
    site.up()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        site.connect(password=former)
    with site.connect() as connection:
        adopted = (
            "SELECT max(adopted_at_iteration) FROM tensile.plans WHERE job_id = %s AND reason = 'resume'"
        )
        wait_until(lambda: _first(connection, adopted, job) is not None)
        # From its checkpoint.
        assert _first(connection, adopted, job) > 100
        connection.execute("SELECT tensile_cancel(%s)", [job])
