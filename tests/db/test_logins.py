"""`tensile-db install --worker ROLE --user ROLE`: the logins that come with an install."""

import base64
import hashlib
import hmac
import os

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from tensile_db.catalog.logins import add_user, add_worker
from tensile_db.cli import app
from tensile_db.errors import Forbidden
from tests.at_once import at_once


@pytest.fixture
def roles(database):
    """Names of roles that are not there, two of them hostile; dropped at the end."""
    names = [f"fresh_{os.getpid()}", f"fr\"es'h; -- {os.getpid()}", f"%s{{}} {os.getpid()}"]
    yield names
    with psycopg.connect(database.admin) as connection:
        for name in names:
            connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


def _kept_password(database, role):
    (row,) = database.execute("SELECT rolpassword FROM pg_authid WHERE rolname = %s", role)
    return row["rolpassword"]


def _is(kept, password):
    """Tell whether PostgreSQL keeps this password so, by RFC 5803."""
    scheme, cost, keys = kept.split("$")
    count, salt = cost.split(":")
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(count))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored = base64.b64encode(hashlib.sha256(client_key).digest()).decode()
    return (scheme, keys.split(":")[0]) == ("SCRAM-SHA-256", stored)


def _groups(database, role):
    rows = database.execute(
        "SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid"
        " JOIN pg_roles r ON r.oid = m.member WHERE r.rolname = %s",
        role,
    )
    return {row["rolname"] for row in rows}


def test_missing_roles_are_made_and_may_work_and_train(database, roles):
    worker, *users = roles
    env = {"COLUMNS": "200", "TENSILE_WORKER_PASSWORD": "one", "TENSILE_USER_PASSWORD": ""}
    arguments = ["install", database.admin, "--worker", worker, *(f"--user={user}" for user in users)]
    result = CliRunner(env=env).invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"created role {worker}\nrole {worker} may log in as a worker\n" in result.stdout
    without = "without a password: TENSILE_USER_PASSWORD is not set"
    for user in users:
        assert f"created role {user}, {without}\nrole {user} may use tensile_db\n" in result.stdout
    assert _groups(database, worker) == {"tensile_worker"}
    assert _is(_kept_password(database, worker), "one")
    for user in users:
        assert _groups(database, user) == {"tensile_user"}
        assert _kept_password(database, user) is None
        with psycopg.connect(make_conninfo(database.admin, user=user)) as connection:
            assert connection.execute("SELECT count(*) FROM tensile.jobs").fetchone() == (0,)
    with psycopg.connect(make_conninfo(database.admin, user=worker)) as connection:
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(users[0])))


def test_a_role_that_is_there_keeps_what_it_has_but_for_a_password_given(database, roles):
    role = roles[0]
    assert add_worker(database.admin, role, password="one")
    kept = _kept_password(database, role)
    assert not add_worker(database.admin, role)
    assert _kept_password(database, role) == kept
    assert not add_worker(database.admin, role, password="änöther's")
    assert _is(_kept_password(database, role), "änöther's")


def test_a_worker_logs_in_and_a_user_may_be_a_group(database, roles):
    for role in roles[:2]:
        database.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role)))
    add_worker(database.admin, roles[0])
    add_user(database.admin, roles[1])
    logins = "SELECT rolcanlogin AS can FROM pg_roles WHERE rolname = %s"
    assert [database.execute(logins, role) for role in roles[:2]] == [[{"can": True}], [{"can": False}]]


def test_a_superuser_becomes_neither_and_nothing_is_changed(database):
    (row,) = database.execute("SELECT current_user AS name")
    before = _kept_password(database, row["name"])
    with pytest.raises(Forbidden, match="is a superuser, which no worker may be"):
        add_worker(database.admin, row["name"], password="one")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="every worker could become it"):
        add_user(database.admin, row["name"], password="one")
    assert _kept_password(database, row["name"]) == before
    assert "tensile_worker" not in _groups(database, row["name"])


def test_several_at_once_make_one_role(database, roles):
    made = at_once(lambda _: add_worker(database.admin, roles[0], password="one"), range(4))
    assert sorted(made) == [False, False, False, True]
    assert _groups(database, roles[0]) == {"tensile_worker"}
