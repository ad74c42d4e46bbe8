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
from tests.at_once import at_once
from tests.throw_away import copied_database


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
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="is a superuser, which no worker may be"):
        add_worker(database.admin, row["name"], password="one")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="every worker could become it"):
        add_user(database.admin, row["name"], password="one")
    assert _kept_password(database, row["name"]) == before
    assert "tensile_worker" not in _groups(database, row["name"])


@pytest.mark.parametrize("name", ["tensile_admin", "tensile_worker", "pg_execute_server_program"])
def test_a_group_becomes_neither(database, name):
    for add in (add_worker, add_user):
        with pytest.raises(
            psycopg.errors.InvalidParameterValue, match=r"is a (group of tensile_db|role of Post)"
        ):
            add(database.admin, name, password="one")
    assert _kept_password(database, name) is None


def test_what_can_become_a_superuser_does_not_work(database, roles):
    database.execute(sql.SQL("CREATE ROLE {} IN ROLE pg_read_server_files").format(sql.Identifier(roles[1])))
    database.execute(sql.SQL("CREATE ROLE {} NOINHERIT").format(sql.Identifier(roles[0])))
    database.execute(sql.SQL("GRANT {1} TO {0}").format(*map(sql.Identifier, roles)))
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"server's files.*which no worker may be"):
        add_worker(database.admin, roles[0])


def test_what_works_does_not_train_and_what_trains_does_not_work(database, roles):
    add_worker(database.admin, roles[0])
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="what works does not train"):
        add_user(database.admin, roles[0])
    add_user(database.admin, roles[1])
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="what trains does not work"):
        add_worker(database.admin, roles[1])
    # And so may be run again.
    assert not add_worker(database.admin, roles[0])
    assert not add_user(database.admin, roles[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--worker=same", "--user=other", "--user=same"], 'the role "same" cannot both work and train'),
        (["--worker="], 'a role cannot be called ""'),
        ([f"--user={64 * 'x'}"], f'a role cannot be called "{64 * "x"}"'),
        (["--user=w\udcff"], "is no UTF-8"),
    ],
)
def test_roles_that_cannot_be_are_refused_before_anything_is_installed(empty_database, options, message):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["install", empty_database, *options])
    assert result.exit_code == 1
    assert message in result.stderr
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT to_regnamespace('tensile')").fetchone() == (None,)


def test_an_install_of_what_is_there_leaves_it_to_whom_it_is_in_use(database, roles):
    arguments = ["install", database.admin, "--if-changed", "--worker", roles[0]]
    assert CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments).exit_code == 0
    with psycopg.connect(database.admin) as connection:
        connection.execute("SELECT count(*) FROM tensile.jobs")
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert f"role {roles[0]} may log in as a worker" in result.stdout


def test_several_at_once_from_several_databases_make_one_role(database, cluster, installed_template, roles):
    other = f"other_{os.getpid()}"
    with copied_database(cluster, other, installed_template) as dsn:
        made = at_once(lambda dsn: add_worker(dsn, roles[0], password="one"), 3 * [database.admin, dsn])
    assert sorted(made) == [*(5 * [False]), True]
    assert _groups(database, roles[0]) == {"tensile_worker"}
