"""A catalog that comes by a dump into another database or cluster, whose roles have other numbers."""

import subprocess

import psycopg
import pytest

from tensile_db.catalog.install import install
from tensile_db.local_postgres import find_postgres
from tests.cli_runs import run
from tests.fixtures.db import Puppet, Site
from tests.jobs.heard_notices import heard_by
from tests.jobs.inserted_rows import add_job, add_model

FIND = "SELECT * FROM tensile_after_restore()"
BY_NAMES = "SELECT * FROM tensile_after_restore(numbers_kept => false)"
BY_NUMBERS = "SELECT * FROM tensile_after_restore(numbers_kept => true)"
NOT_AT_HOME = (
    "the catalog of tensile_db comes from another database, where roles and tables may have other numbers"
)
CATALOG = """SELECT status, found, hint FROM tensile_doctor() WHERE "check" = 'catalog'"""
SUBMIT = "SELECT tensile_submit('mlp', 'points', 'y')"
#: No role ever had it, nor will.
NOBODYS = 3_000_000_000


def is_at_home(site):
    return site.value("SELECT tensile.is_at_home()")


def found(site, statement=FIND):
    """Find the owners; return what became of how many, but for what was none."""
    return {row["what"]: row["count"] for row in site.execute(statement) if row["count"]}


@pytest.fixture
def restored(site, cluster):
    """Dump the site and restore it into another database of the cluster; returns that one."""
    made = []

    def restore(*, data_of=None):
        programs, dsn = find_postgres(), cluster.dsn(dbname="restored")
        with psycopg.connect(cluster.dsn(dbname="postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE restored")
        made.append(Site(admin=dsn))
        only = [] if data_of is None else ["--data-only", *(f"--table=tensile.{name}" for name in data_of)]
        if only:
            install(dsn)
        dump = subprocess.run(
            [programs.program("pg_dump"), "-Fc", *only, "--dbname", site.admin],
            capture_output=True,
            check=True,
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
def eve(site):
    """A role that is called `eva` by now, and whose model does not know."""
    site.execute("CREATE ROLE eve LOGIN")
    add_model(site, owner="eve")
    site.execute("ALTER ROLE eve RENAME TO eva")
    yield "eve"
    site.execute("DROP OWNED BY eva; DROP ROLE eva")


def number_of(site, role):
    return site.value("SELECT oid::bigint FROM pg_roles WHERE rolname = %s", role)


def owners(site):
    """Return (owner by number, owner by name, name, version, pinned) of each model."""
    rows = site.execute(
        "SELECT r.rolname, m.owner, m.name, m.version, m.pinned FROM tensile.models m"
        " LEFT JOIN pg_roles r ON r.oid = m.owned_by ORDER BY m.id"
    )
    return [tuple(row.values()) for row in rows]


def rename_owner(site, before, after):
    """Let rows have another name for the owner's number than there is here."""
    for table, column in (("models", "owner"), ("jobs", "owner"), ("quotas", "role")):
        site.execute(f"UPDATE tensile.{table} SET {column} = %s WHERE {column} = %s", after, before)


def test_a_dump_restored_beside_its_source_is_told_apart_until_its_owners_are_found(site, restored):
    job = add_job(site, "alice")
    queued = add_job(site, "bob", state="queued", days_ago=None)
    add_model(site, owner="alice")
    site.execute("SELECT tensile_set_quota('bob', 3)")
    copy = restored()
    assert (is_at_home(site), is_at_home(copy)) == (True, False)

    (said,) = copy.execute(CATALOG, role="alice")
    assert (said["status"], said["found"]) == ("problem", NOT_AT_HOME)
    assert FIND in said["hint"]
    with Puppet(copy, Puppet.succeed):
        for call in (SUBMIT, f"SELECT tensile_cancel({queued})", "SELECT tensile_drop_model('digits')"):
            assert copy.refusal(call) == ("55000", NOT_AT_HOME, said["hint"])
    sqlstate, message, _ = copy.refusal(FIND, role="carol")
    assert (sqlstate, message) == ("42501", 'role "carol" may not find the owners of what was restored')

    assert found(copy) == {"unfinished jobs deleted": 1}
    assert copy.execute("SELECT id FROM tensile.jobs") == [{"id": job}]
    assert copy.execute("SELECT state FROM tensile.workers") == [{"state": "gone"}]
    assert owners(copy) == owners(site)
    assert copy.value("SELECT max_concurrent_jobs FROM tensile.quota_usage WHERE role = 'bob'") == 3
    assert copy.value(SUBMIT, role="alice") > queued
    (said,) = copy.execute(CATALOG, role="alice")
    assert said["status"] == "ok"
    # What is under way by now is none of its business.
    assert copy.execute(FIND) == []
    assert copy.value("SELECT count(*) FROM tensile.jobs") == 2


def test_an_install_of_what_was_restored_says_so(site, restored):
    copy = restored()
    said = run("install", copy.admin).stderr
    assert NOT_AT_HOME in said
    assert FIND in said
    assert not is_at_home(copy)
    copy.execute(FIND)
    assert NOT_AT_HOME not in run("install", copy.admin).stderr


def test_rows_that_come_into_an_installed_database_are_told_by_the_home_that_comes_with_them(site, restored):
    add_model(site, owner="alice")
    copy = restored(data_of=["models", "homes"])
    assert not is_at_home(copy)
    found(copy)
    assert is_at_home(copy)


def test_owners_of_rows_that_came_without_their_home_can_be_found_all_the_same(site, restored, moved):
    add_model(site, owner="alice")
    moved({"alice": number_of(site, "bob")})
    copy = restored(data_of=["models"])
    assert is_at_home(copy)
    assert found(copy) == {}
    assert owners(copy) == [("bob", "alice", "digits", 1, False)]
    found(copy, BY_NAMES)
    assert owners(copy) == [("alice", "alice", "digits", 1, False)]


def test_that_is_not_done_beside_a_worker_whose_jobs_it_would_delete(site):
    add_job(site, state="queued", days_ago=None)
    with Puppet(site, lambda puppet, job: None):
        sqlstate, message, _ = site.refusal(BY_NAMES, role="postgres")
    assert (sqlstate, message) == ("55006", "a worker is running, whose jobs would be deleted")
    assert site.value("SELECT count(*) FROM tensile.jobs") == 1


def test_a_catalog_that_lost_its_home_is_nowhere_at_home(site):
    site.execute("DELETE FROM tensile.homes")
    assert not is_at_home(site)
    add_model(site, owner="alice")
    found(site)
    assert is_at_home(site)


@pytest.mark.parametrize("statement", [BY_NUMBERS, BY_NAMES])
def test_within_one_cluster_it_is_asked_what_other_names_mean(site, eve, restored, statement):
    """A role was renamed since, or the cluster began as a copy of the other's files."""
    copy = restored()
    sqlstate, message, hint = copy.refusal(FIND, role="postgres")
    assert (sqlstate, message.partition(",")[0]) == ("22023", "the catalog's owners have other names by now")
    assert f"If roles were renamed since the dump: {BY_NUMBERS}; else: {BY_NAMES}." in hint
    assert not is_at_home(copy)
    copy.execute(statement)
    (model,) = owners(copy)
    assert model[:2] == {BY_NUMBERS: ("eva", "eve"), BY_NAMES: ("postgres", "postgres")}[statement]


@pytest.mark.parametrize("statement", [BY_NUMBERS, BY_NAMES])
def test_where_tables_have_the_numbers_that_they_had_it_is_asked_whether_all_were_kept(
    site, moved, eve, statement
):
    """As pg_upgrade keeps them, and as two clusters have them that one script has made."""
    job = add_job(site, "alice", state="queued", days_ago=None)
    moved({}, jobs_oid=None)
    sqlstate, message, hint = site.refusal(FIND, role="postgres")
    assert sqlstate == "22023"
    assert message == "the catalog comes from another cluster, in which its tables had the same numbers"
    assert hint == f"After pg_upgrade, which keeps all numbers: {BY_NUMBERS}; else: {BY_NAMES}."
    assert not is_at_home(site)
    became = found(site, statement)
    assert is_at_home(site)
    jobs = site.execute("SELECT id FROM tensile.jobs")
    by_numbers = ({}, [("eva", "eve", "digits", 1, False)], [{"id": job}])
    by_names = (
        {"unfinished jobs deleted": 1, "versions of models now yours": 1},
        [("postgres", "postgres", "digits", 1, False)],
        [],
    )
    assert (became, owners(site), jobs) == {BY_NUMBERS: by_numbers, BY_NAMES: by_names}[statement]


def test_that_roles_of_another_cluster_have_kept_their_numbers_is_not_believed(site, moved):
    moved({})
    sqlstate, message, hint = site.refusal(BY_NUMBERS, role="postgres")
    assert sqlstate == "22023"
    assert message == "the catalog came by a dump from another cluster, whose roles have other numbers"
    assert hint == f"Have owners found by their names: {BY_NAMES}."
    assert not is_at_home(site)


def test_what_was_restored_from_a_restored_catalog_is_still_another_clusters(site, moved):
    for owner in ("alice", "bob"):
        add_model(site, owner=owner)
    before = owners(site)
    moved({"alice": number_of(site, "bob"), "bob": number_of(site, "alice")})
    # Where it had been restored first, and was dumped again without finding owners.
    site.execute("INSERT INTO tensile.homes SELECT system_identifier, 2 FROM tensile.current_home()")
    site.execute("INSERT INTO tensile.homes SELECT * FROM tensile.current_home()")
    found(site)
    assert owners(site) == before


def test_in_another_cluster_owners_are_found_by_their_names_where_numbers_have_changed_places(site, moved):
    for owner in ("alice", "bob"):
        for version in (1, 2):
            add_model(site, owner=owner, version=version)
        add_job(site, owner)
        site.execute("SELECT tensile_pin_model('digits', 1)", role=owner)
        site.execute("SELECT tensile_set_quota(%s, %s, 1000, 2.5, 7)", owner, len(owner))
    site.execute("SELECT tensile_set_quota(NULL, 9)")
    before, quotas = owners(site), "SELECT * FROM tensile.quotas ORDER BY role_oid"
    limits = site.execute(quotas)
    moved({"alice": number_of(site, "bob"), "bob": number_of(site, "alice")})
    assert [row[:2] for row in owners(site)] == [("bob", "alice")] * 2 + [("alice", "bob")] * 2
    # Nobody sees by another's number what is not his.
    assert site.value("SELECT count(*) FROM tensile_models()", role="alice") == 0
    assert site.value("SELECT count(*) FROM tensile.jobs", role="alice") == 0
    assert found(site) == {}
    assert owners(site) == before
    for owner in ("alice", "bob"):
        assert site.value("SELECT owner FROM tensile.jobs", role=owner) == owner
    assert site.execute(quotas) == limits


def test_what_nobody_here_owned_is_the_restorers_and_keeps_a_name_of_its_own(site, moved):
    add_model(site, owner="postgres")
    for version, owner in enumerate(("alice", "bob"), 2):
        add_model(site, owner=owner)
        add_model(site, owner=owner, name="other", version=version)
        site.execute("SELECT tensile_pin_model('digits', 1)", role=owner)
        site.execute("SELECT tensile_set_quota(%s, 1)", owner)
        add_job(site, owner)
    rename_owner(site, "alice", "gone")
    rename_owner(site, "bob", "gone's")
    # One of them has a number that is somebody's here, and has guessed what a model would be called.
    moved({"gone": number_of(site, "carol"), "gone's": NOBODYS})
    add_model(site, owner="postgres", name=f"digits (of gone's, {NOBODYS})")
    assert site.execute("""SELECT FROM tensile_doctor() WHERE "check" = 'owner'""") == []
    assert found(site) == {
        "versions of models now yours": 4,
        "versions of models renamed": 3,
        "ended jobs now yours": 2,
        "quotas deleted": 2,
    }
    carols = number_of(site, "carol")
    assert [row[1:] for row in owners(site)] == [
        ("postgres", "digits", 1, False),
        ("postgres", f"digits (of gone, {carols})", 1, False),
        ("postgres", "other", 2, False),
        ("postgres", f"digits (of gone's, {NOBODYS}, 2)", 1, False),
        # Versions of two owners' models are not those of one.
        ("postgres", f"other (of gone's, {NOBODYS})", 3, False),
        ("postgres", f"digits (of gone's, {NOBODYS})", 1, False),
    ]
    assert site.value("SELECT count(*) FROM tensile_models()", role="carol") == 6
    assert site.value("SELECT count(*) FROM tensile.quotas") == 0


def test_the_models_of_a_dropped_role_are_not_those_of_the_next_one_of_its_name(site, moved):
    for version, name in ((1, "former"), (2, "latter")):
        add_model(site, owner="bob", version=version, name=name)
    site.execute(
        "UPDATE tensile.models SET owned_by = %s, created_at = created_at - interval '1 day'"
        " WHERE name = 'former'",
        NOBODYS,
    )
    moved({})
    assert found(site) == {"versions of models now yours": 1}
    assert [row[1:3] for row in owners(site)] == [("postgres", "former"), ("bob", "latter")]


def test_with_an_unfinished_search_its_ended_trials_go(site, moved):
    search = add_job(site, kind="search", state="running", days_ago=None)
    add_job(site, search=search)
    ended = add_job(site)
    moved({})
    assert found(site) == {"unfinished jobs deleted": 2}
    assert site.execute("SELECT id FROM tensile.jobs") == [{"id": ended}]


def test_it_can_be_tried_out_again_and_again_in_a_transaction(site, moved):
    add_model(site)
    moved({"alice": NOBODYS})
    with site.connect("postgres", autocommit=False) as connection:
        heard = heard_by(connection)
        connection.execute("CREATE TEMPORARY TABLE tensile_families (id integer)")
        for _ in range(2):
            connection.execute("SAVEPOINT before")
            connection.execute(FIND)
            connection.execute("ROLLBACK TO before")
        connection.rollback()
    assert heard == []
    assert not is_at_home(site)
    found(site)
    assert owners(site) == [("alice", "alice", "digits", 1, False)]


def test_names_are_those_that_roles_have_wherever_they_can_be(site, moved):
    site.execute("CREATE ROLE eve LOGIN; SELECT tensile_set_quota('eve', 1)")
    add_model(site, owner="eve")
    locked, free = add_job(site, "eve"), add_job(site, "eve")
    # As an administrator may.
    site.execute("INSERT INTO tensile.quotas (role_oid, max_concurrent_jobs) SELECT 'bob'::regrole, 1")
    site.execute("ALTER ROLE eve RENAME TO eva")
    refresh, roles = "SELECT tensile.refresh_names()", "SELECT role FROM tensile.quotas ORDER BY 1"
    with site.connect("postgres", autocommit=False) as other:
        other.execute("SELECT FROM tensile.jobs WHERE id = %s FOR UPDATE", [locked])
        # Whoever has locked a row is not waited for.
        assert site.value(refresh) == 1
    assert (site.job(locked)["owner"], site.job(free)["owner"]) == ("eve", "eva")
    assert [row["role"] for row in site.execute(roles)] == ["bob", "eva"]
    site.execute("DROP OWNED BY eva; DROP ROLE eva")
    for _ in range(2):
        assert site.value(refresh) == 0
        assert {row[1] for row in owners(site)} == {"eva (dropped)"}
        assert site.job(locked)["owner"] == "eve (dropped)"
    moved({})
    site.execute("UPDATE tensile.models SET owner = 'x'")
    assert site.value(refresh) == 0
    assert {row[1] for row in owners(site)} == {"x"}
