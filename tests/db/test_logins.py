"""`tensile-db install --worker ROLE --user ROLE`: the logins that come with an install."""

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
    """Names of roles that are not there, one of them hostile; dropped at the end."""
    names = [f"fresh_{os.getpid()}", f"fr\"es'h; -- {os.getpid()}", f"%s{{}} {os.getpid()}"]
    yield names
    with psycopg.connect(database.admin) as connection:
        for name in names:
            connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


def _kept_password(database, role):
    (row,) = database.execute("SELECT rolpassword FROM pg_authid WHERE rolname = %s", role)
    return row["rolpassword"]


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
    assert f"{worker} logs in as a worker\n" in result.stdout
    without = "without a password: TENSILE_USER_PASSWORD is not set"
    for user in users:
        assert f"{user} uses tensile_db, {without}" in result.stdout
    assert _groups(database, worker) == {"tensile_worker"}
    assert _kept_password(database, worker).startswith("SCRAM-SHA-256$")
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
    assert not add_worker(database.admin, role, password="another")
    assert _kept_password(database, role) not in (kept, None)


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
