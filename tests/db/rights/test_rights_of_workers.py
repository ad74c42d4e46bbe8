"""What a worker's login may do, and when."""

import psycopg
import pytest

from tests.fixtures.db import PUPPET_LOGIN, Puppet


def test_the_workers_login_has_users_rights_only_while_it_is_one_of_them(site):
    with site.connect(PUPPET_LOGIN) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT 1 FROM images_table")
        connection.execute("SET ROLE alice")
        assert connection.execute("SELECT count(*) AS rows FROM images_table").fetchone() == {"rows": 9}
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("UPDATE tensile.workers SET state = 'gone'")
    flags = "SELECT rolsuper OR rolcreaterole OR rolbypassrls FROM pg_roles WHERE rolname = %s"
    assert site.value(flags, PUPPET_LOGIN) is False


def test_a_worker_cannot_reach_the_settings(site):
    assert site.refusal("UPDATE tensile.settings SET value = 'x'", role=PUPPET_LOGIN)[0] == "42501"


@pytest.fixture
def sneaky(site):
    """A role that uses tensile_db and has nothing besides, nor any role between it and others."""
    site.execute(
        "CREATE ROLE between NOLOGIN; CREATE ROLE sneaky LOGIN; SELECT tensile_grant_usage('sneaky')"
    )
    yield "sneaky"
    site.execute("DROP ROLE sneaky, between")


#: What makes a role one that no worker may become -> what is said of it.
POWERS = [
    ("GRANT postgres TO sneaky", 'is a member of "postgres", which is a superuser'),
    (
        "ALTER ROLE sneaky NOINHERIT; GRANT postgres TO sneaky",
        'is a member of "postgres", which is a superuser',
    ),
    (
        "GRANT postgres TO between; GRANT between TO sneaky",
        'is a member of "postgres", which is a superuser',
    ),
    ("ALTER ROLE sneaky SUPERUSER", "is a superuser"),
    *(
        (
            f"GRANT {role} TO between; GRANT between TO sneaky",
            f'is a member of "{role}", which is allowed to use the server\'s files and programs',
        )
        for role in ("pg_execute_server_program", "pg_read_server_files", "pg_write_server_files")
    ),
]


def found_of_rights(site):
    return site.execute(
        """SELECT status, found, hint FROM tensile_doctor() WHERE "check" = 'rights'""", role="alice"
    )


@pytest.mark.parametrize(("grant", "said"), POWERS)
def test_no_worker_becomes_what_can_become_a_superuser(site, sneaky, grant, said):
    site.execute("REVOKE sneaky FROM tensile_worker")
    site.execute(grant)
    assert site.refusal("SELECT tensile_grant_usage('sneaky')", role="postgres") == (
        "42501",
        f'"sneaky" {said}, and every worker could become it',
        "Grant an ordinary role, and SET ROLE to it for training.",
    )
    assert site.value("SELECT pg_has_role('tensile_worker', 'sneaky', 'MEMBER')") is False


@pytest.mark.parametrize(("grant", "said"), POWERS)
def test_the_doctor_finds_what_became_of_a_role_later(site, sneaky, grant, said):
    assert found_of_rights(site) == [
        {"status": "ok", "found": "workers can become no superuser", "hint": None}
    ]
    site.execute(grant)
    assert found_of_rights(site) == [
        {
            "status": "problem",
            "found": f'workers may become "sneaky", which {said}',
            "hint": "Take that from it, or REVOKE sneaky FROM tensile_worker.",
        }
    ]


def test_the_doctor_finds_what_a_workers_login_was_given_itself(site):
    site.execute(f"GRANT postgres TO {PUPPET_LOGIN}")
    try:
        (row,) = found_of_rights(site)
    finally:
        site.execute(f"REVOKE postgres FROM {PUPPET_LOGIN}")
    assert row["found"] == 'workers may become "postgres", which is a superuser'
    assert row["hint"] == f"Take that from it, or REVOKE postgres FROM {PUPPET_LOGIN}."


def test_the_doctor_finds_what_a_workers_login_can_give_itself(site):
    if site.value("SELECT current_setting('server_version_num')::int") >= 160000:
        pytest.skip("from PostgreSQL 16 it cannot")
    site.execute(f"ALTER ROLE {PUPPET_LOGIN} CREATEROLE")
    try:
        (row,) = found_of_rights(site)
    finally:
        site.execute(f"ALTER ROLE {PUPPET_LOGIN} NOCREATEROLE")
    assert row["found"].startswith(
        f'a worker\'s login, "{PUPPET_LOGIN}", is allowed to give pg_execute_server'
    )
    assert row["hint"] == f"Take that from {PUPPET_LOGIN}."


def test_a_role_that_can_give_itself_any_role_is_refused_where_servers_let_it(site, sneaky):
    site.execute("REVOKE sneaky FROM tensile_worker; ALTER ROLE sneaky CREATEROLE")
    if site.value("SELECT current_setting('server_version_num')::int") >= 160000:
        pytest.skip("from PostgreSQL 16 it cannot")
    _, message, _ = site.refusal("SELECT tensile_grant_usage('sneaky')", role="postgres")
    assert message.startswith('"sneaky" is allowed to give pg_execute_server_program to itself (CREATEROLE,')


def test_a_role_that_reads_all_tables_may_use_tensile_db(site, sneaky):
    site.execute("GRANT pg_read_all_data TO sneaky")
    site.execute("SELECT tensile_grant_usage('sneaky')")
    assert found_of_rights(site)[0]["status"] == "ok"


def test_who_has_become_a_superuser_is_told_that_workers_read_nothing_as_one(site, sneaky):
    site.execute("GRANT SELECT ON images_table TO sneaky; ALTER ROLE sneaky SUPERUSER")
    with Puppet(site, Puppet.succeed):
        refusal = site.refusal("SELECT tensile_train('vgg16', 'images_table')", role="sneaky")
    site.execute("DROP OWNED BY sneaky")
    assert refusal[:2] == ("42501", 'no worker may read tables as the role "sneaky"')
    assert refusal[2].startswith("Workers never become a superuser")
