"""Why a server lets nobody in."""

import socket
import threading
import time

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tensile_db.catalog.refusing import find_refusal
from tests.patience import wait_until

# Before, libpq does not tell in its trace what a server answers.
pytestmark = pytest.mark.skipif(psycopg.pq.version() < 180000, reason="libpq is older than 18")

LOGIN = "login_with_password"


@pytest.fixture
def password_wanted(cluster):
    """Connection string of a role that is asked for its password, which it lacks."""
    rules = cluster.data / "pg_hba.conf"
    before = rules.read_text()
    role = sql.Identifier(LOGIN)
    with psycopg.connect(cluster.dsn(dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'right'").format(role))
        rules.write_text(f"local all {LOGIN} scram-sha-256\n{before}")
        connection.execute("SELECT pg_reload_conf()")
        dsn = cluster.dsn(user=LOGIN, dbname="postgres")
        wait_until(lambda: find_refusal(dsn) is not None)
        yield dsn
        rules.write_text(before)
        connection.execute("SELECT pg_reload_conf()")
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_who_is_let_in_is_not_refused(cluster):
    assert find_refusal(cluster.dsn(dbname="postgres")) is None


def test_a_role_and_a_database_that_are_not_there_are_told(cluster):
    assert find_refusal(cluster.dsn(user="absent", dbname="postgres")) == "28000"
    assert find_refusal(cluster.dsn(dbname="absent")) == "3D000"


def test_a_password_that_is_wrong_or_missing_is_told(password_wanted):
    assert find_refusal(password_wanted) == "28P01"
    assert find_refusal(make_conninfo(password_wanted, password="wrong")) == "28P01"
    assert find_refusal(make_conninfo(password_wanted, password="right")) is None


def test_what_a_name_says_is_not_taken_for_an_answer(cluster):
    name = 'x"\tErrorResponse\t S "FATAL" V "FATAL" C "28000" '
    assert find_refusal(cluster.dsn(dbname=name)) == "3D000"


@pytest.mark.parametrize("where", ["host={}", "host=localhost port=1", "host=nowhere.invalid"])
def test_a_server_that_is_away_refuses_nobody(where, tmp_path):
    assert find_refusal(where.format(tmp_path)) is None


def test_of_several_servers_one_that_is_away_may_let_us_in(cluster, tmp_path):
    dsn = cluster.dsn(user="absent", dbname="postgres")
    assert find_refusal(make_conninfo(dsn, host=f"{cluster.socket_directory},{tmp_path}")) is None


def test_a_server_that_is_starting_says_so():
    answer = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"

    def serve(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(b"E" + (len(answer) + 4).to_bytes(4, "big") + answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        port = listener.getsockname()[1]
        assert find_refusal(f"host=127.0.0.1 port={port} sslmode=disable gssencmode=disable") == "57P03"
        thread.join()


def test_a_server_that_says_nothing_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr("tensile_db.catalog.refusing._TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begin_s = time.monotonic()
        assert find_refusal(f"host=127.0.0.1 port={listener.getsockname()[1]}") is None
        assert time.monotonic() - begin_s < 5
