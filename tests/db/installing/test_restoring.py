"""A catalog that comes by a dump into another database or cluster, whose roles have other numbers."""

import subprocess
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from tensile_db.catalog.homes import is_home
from tensile_db.catalog.install import install
from tensile_db.local_postgres import find_postgres
from tests.cli_runs import run
from tests.fixtures.db import Puppet, Site
from tests.jobs.inserted_rows import add_job, add_model

SETTLE = "SELECT * FROM tensile_after_restore()"
NOT_SETTLED = "tensile_db was restored here from another database, where roles and tables had other numbers"
#: No role ever had it, nor will.
NOBODYS = 3_000_000_000


def counts(rows):
    """Return what became of how many rows, by its first words."""
    return {row["what"].split(":")[0].split(",")[0]: row["count"] for row in rows}


@pytest.fixture
def restored(site, cluster):
    """Dump the site and restore it into another database of the cluster; returns that one."""
    made = []

    def restore():
        programs, dsn = find_postgres(), cluster.dsn(dbname="restored")
        with psycopg.connect(cluster.dsn(dbname="postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE restored")
        made.append(Site(admin=dsn))
        dump = subprocess.run(
            [programs.program("pg_dump"), "-Fc", "--dbname", site.admin], capture_output=True, check=True
        )
        subprocess.run(
            [programs.program("pg_restore"), "--exit-on-error", "--dbname", dsn],
            input=dump.stdout,
            capture_output=True,
            check=True,
        )
        return made[0]

    yield restore
    for copy in made:
        copy.close()
    with psycopg.connect(cluster.dsn(dbname="postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS restored WITH (FORCE)")


@pytest.fixture
def moved(site):
    """Play that the site's rows come from another cluster, whose roles have other numbers.

    Returns a function of the numbers there, by role.
    """

    def move(numbers, *, tables_too=True):
        for table, number in (("models", "owned_by"), ("jobs", "submitted_by"), ("quotas", "role_oid")):
            name = "role" if table == "quotas" else "owner"
            column, table = sql.Identifier(number), sql.Identifier("tensile", table)
            with site.connect("postgres") as connection:
                connection.execute("SET session_replication_role = replica")
                changed = sql.SQL("UPDATE {} SET {} = %s WHERE {} = %s").format(
                    table, column, sql.Identifier(name)
                )
                # Not onto a number that another row of the same key has yet to leave.
                for aside in (1_000_000_000, 0):
                    for role, there in numbers.items():
                        connection.execute(changed, [aside + there if aside else there, role])
        site.execute("UPDATE tensile.homes SET system_identifier = 1")
        if tables_too:
            site.execute("UPDATE tensile.homes SET jobs_oid = 1")

    return move


def number_of(site, role):
    return site.value("SELECT oid::bigint FROM pg_roles WHERE rolname = %s", role)


def owners(site):
    """Return (owner by number, owner by name, name, version, pinned) of each model."""
    rows = site.execute(
        "SELECT r.rolname, m.owner, m.name, m.version, m.pinned FROM tensile.models m"
        " LEFT JOIN pg_roles r ON r.oid = m.owned_by ORDER BY m.id"
    )
    return [tuple(row.values()) for row in rows]


def test_a_dump_restored_beside_its_source_is_told_apart_and_settled(site, restored):
    job = add_job(site, "alice")
    queued = add_job(site, "bob", state="queued", days_ago=None)
    add_model(site, owner="alice")
    site.execute("SELECT tensile_set_quota('bob', 3)")
    copy = restored()
    assert (is_home(site.admin), is_home(copy.admin)) == (True, False)

    doctor = """SELECT status, found, hint FROM tensile_doctor() WHERE "check" = 'catalog'"""
    (found,) = copy.execute(doctor, role="alice")
    assert (found["status"], found["found"]) == ("problem", NOT_SETTLED)
    submit = "SELECT tensile_submit('mlp', 'points', 'y')"
    with Puppet(copy, Puppet.succeed):
        assert copy.refusal(submit) == ("55000", NOT_SETTLED, found["hint"])
    assert SETTLE in found["hint"]
    sqlstate, message, _ = copy.refusal(SETTLE, role="carol")
    assert (sqlstate, message) == ("42501", 'role "carol" may not find the owners of what was restored')

    assert counts(copy.execute(SETTLE)) == {"jobs that had not ended": 1}
    assert copy.execute("SELECT id FROM tensile.jobs") == [{"id": job}]
    assert copy.execute("SELECT state FROM tensile.workers") == [{"state": "gone"}]
    assert owners(copy) == owners(site)
    assert copy.value("SELECT max_concurrent_jobs FROM tensile.quota_usage WHERE role = 'bob'") == 3
    assert copy.value(submit, role="alice") > queued
    (found,) = copy.execute(doctor, role="alice")
    assert found["status"] == "ok"
    # What is under way by now is none of its business.
    assert copy.execute(SETTLE) == []
    assert copy.value("SELECT count(*) FROM tensile.jobs") == 2


def test_roles_of_one_cluster_are_known_by_number_whatever_their_names_were(site, restored):
    add_model(site, owner="alice")
    site.execute("UPDATE tensile.models SET owner = 'bob'")
    copy = restored()
    copy.execute(SETTLE)
    assert owners(copy) == [("alice", "bob", "digits", 1, False)]


def test_an_install_of_what_was_restored_says_that_it_is_to_be_settled(site, restored):
    copy = restored()
    said = run("install", copy.admin).stdout
    assert NOT_SETTLED in said
    assert SETTLE in said
    copy.execute(SETTLE)
    assert NOT_SETTLED not in run("install", copy.admin).stdout
    # Installed again, it is as restored as it was.
    with closing(Site(admin=copy.admin)) as again:
        again.execute("UPDATE tensile.homes SET system_identifier = 1")
        install(copy.admin)
        assert not is_home(copy.admin)


def test_in_another_cluster_owners_are_found_by_their_names_where_numbers_have_changed_places(site, moved):
    for owner in ("alice", "bob"):
        for version in (1, 2):
            add_model(site, owner=owner, version=version)
        add_job(site, owner)
        site.execute("SELECT tensile_pin_model('digits', 1)", role=owner)
        site.execute("SELECT tensile_set_quota(%s, %s)", owner, len(owner))
    site.execute("SELECT tensile_set_quota(NULL, 9)")
    before = owners(site)
    moved({"alice": number_of(site, "bob"), "bob": number_of(site, "alice")})
    assert [row[:2] for row in owners(site)] == [("bob", "alice")] * 2 + [("alice", "bob")] * 2
    assert set(counts(site.execute(SETTLE)).values()) == {0}
    assert owners(site) == before
    for owner in ("alice", "bob"):
        assert site.value("SELECT owner FROM tensile.jobs", role=owner) == owner
    quotas = "SELECT role_oid::regrole::text, role, max_concurrent_jobs FROM tensile.quotas ORDER BY role_oid"
    assert [tuple(row.values()) for row in site.execute(quotas)] == [
        ("-", None, 9),
        ("alice", "alice", 5),
        ("bob", "bob", 3),
    ]


def test_what_nobody_here_owned_is_the_restorers_and_keeps_a_name_of_its_own(site, moved):
    add_model(site, owner="postgres")
    names = {"alice": "gone", "bob": "gone's"}
    for version, owner in enumerate(names, 2):
        add_model(site, owner=owner)
        add_model(site, owner=owner, name="other", version=version)
        site.execute("SELECT tensile_pin_model('digits', 1)", role=owner)
        site.execute("SELECT tensile_set_quota(%s, 1)", owner)
        add_job(site, owner)
    for table, column in (("models", "owner"), ("jobs", "owner"), ("quotas", "role")):
        for owner, name in names.items():
            site.execute(f"UPDATE tensile.{table} SET {column} = %s WHERE {column} = %s", name, owner)
    # One of them has a number that is somebody's here.
    moved({"gone": number_of(site, "carol"), "gone's": NOBODYS})
    assert counts(site.execute(SETTLE)) == {
        "jobs that had not ended": 0,
        "models of roles that are not here": 4,
        "models with the name of another of their new owner's": 3,
        "jobs of roles that are not here": 2,
        "quotas of roles that are not here": 2,
    }
    assert owners(site) == [
        ("postgres", "postgres", "digits", 1, False),
        ("postgres", "postgres", f"digits (of gone, {number_of(site, 'carol')})", 1, False),
        ("postgres", "postgres", "other", 2, False),
        ("postgres", "postgres", f"digits (of gone's, {NOBODYS})", 1, False),
        # Versions of two owners' models are not those of one.
        ("postgres", "postgres", f"other (of gone's, {NOBODYS})", 3, False),
    ]
    assert site.value("SELECT count(*) FROM tensile_models()", role="carol") == 5
    assert site.value("SELECT count(*) FROM tensile_models()", role="alice") == 0
    assert site.value("SELECT count(*) FROM tensile.quotas") == 0


@pytest.mark.parametrize("numbers_kept", [True, False])
def test_where_tables_have_the_numbers_that_they_had_it_is_asked_whether_all_were_kept(
    site, moved, numbers_kept
):
    """As pg_upgrade keeps them, and as two clusters have them that one script has made."""
    site.execute("CREATE ROLE eve LOGIN")
    try:
        add_model(site, owner="eve")
        job = add_job(site, "alice", state="queued", days_ago=None)
        site.execute("ALTER ROLE eve RENAME TO eva")
        moved({}, tables_too=False)
        sqlstate, message, hint = site.refusal(SETTLE, role="postgres")
        assert sqlstate == "22023"
        assert message == "the catalog comes from another cluster, in which its tables had the same numbers"
        assert "After pg_upgrade, which keeps all numbers: SELECT * FROM tensile_after_restore(true)" in hint
        assert not is_home(site.admin)
        found = counts(site.execute("SELECT * FROM tensile_after_restore(%s)", numbers_kept))
        assert is_home(site.admin)
        if numbers_kept:
            assert found == {}
            assert owners(site) == [("eva", "eve", "digits", 1, False)]
            assert site.job(job)["state"] == "queued"
        else:
            assert found["jobs that had not ended"] == found["models of roles that are not here"] == 1
            assert owners(site) == [("postgres", "postgres", "digits", 1, False)]
    finally:
        site.execute("DROP OWNED BY eva; DROP ROLE eva")


def test_names_are_those_that_roles_have_and_nothing_is_touched_before_it_is_settled(site, moved):
    site.execute("CREATE ROLE eve LOGIN; SELECT tensile_set_quota('eve', 1)")
    try:
        add_model(site, owner="eve")
        locked, free = add_job(site, "eve"), add_job(site, "eve")
        site.execute("ALTER ROLE eve RENAME TO eva")
        refresh = "SELECT tensile.refresh_names()"
        with site.connect("postgres", autocommit=False) as other:
            other.execute("SELECT FROM tensile.jobs WHERE id = %s FOR UPDATE", [locked])
            # Whoever has locked a row is not waited for.
            assert site.value(refresh) == 3
        assert site.job(free)["owner"] == "eva"
        assert site.job(locked)["owner"] == "eve"
        moved({})
        assert site.value(refresh) == 0
        site.execute("SELECT * FROM tensile_after_restore(true)")
        assert site.value(refresh) == 1
        assert site.value("SELECT role FROM tensile.quotas") == "eva"
    finally:
        site.execute("DROP OWNED BY eva; DROP ROLE eva")
