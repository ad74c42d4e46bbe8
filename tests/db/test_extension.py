"""As an extension: the same as an install, dumped with its rows, updated and dropped."""

import os
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tensile_db.catalog import extension
from tensile_db.catalog.install import install, package_version
from tensile_db.errors import InvalidRequest
from tensile_db.local import LocalCluster
from tensile_db.local_postgres import find_postgres, shared_folders
from tests.db.test_delete_jobs import add_job
from tests.db.test_install import SNAPSHOT
from tests.db.test_models import add_model
from tests.fix_db import ARCHITECTURES, Site

CREATE = "CREATE EXTENSION tensile_db CASCADE"
#: A version that had one migration less, and nothing of sql/.
BEFORE, ITS_MIGRATION = "0.0.9", "0027"
#: What the snapshot of installs has not.
DEFINITIONS = """
SELECT p.oid::regprocedure::text AS name, pg_get_functiondef(p.oid) AS body, p.proowner::integer AS owner,
       obj_description(p.oid, 'pg_proc') AS comment
FROM pg_proc p WHERE p.pronamespace IN ('tensile'::regnamespace, 'public'::regnamespace) AND p.prokind = 'f'
AND position('dblink' IN p.proname) = 0
UNION ALL
SELECT concat(conrelid::regclass, '.', conname), pg_get_constraintdef(oid), 0,
       obj_description(oid, 'pg_constraint')
FROM pg_constraint WHERE connamespace = 'tensile'::regnamespace
UNION ALL
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid), 0, ''
FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE c.relnamespace = 'tensile'::regnamespace
UNION ALL
SELECT concat(tgrelid::regclass, '.', tgname), pg_get_triggerdef(oid), 0, obj_description(oid, 'pg_trigger')
FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT concat(attrelid::regclass, '.', attname), concat(attstorage, attidentity, attnotnull,
       pg_get_expr(adbin, adrelid)), relowner::integer, col_description(attrelid, attnum)
FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE relnamespace = 'tensile'::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
UNION ALL
SELECT oid::regclass::text, concat(CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) END, reloptions),
       relrowsecurity::integer,
       obj_description(oid, 'pg_class')
FROM pg_class WHERE relnamespace = 'tensile'::regnamespace AND relkind IN ('v', 'r')
ORDER BY 1, 2
"""
PROGRAMS = ("initdb", "pg_config", "pg_ctl", "pg_dump", "postgres", "psql")


@pytest.fixture(scope="module")
def server(server_folder):
    """A server whose PostgreSQL has the extension: a copy, for nothing is put into the machine's own."""
    programs = find_postgres()
    share, library = shared_folders(programs.bindir, programs.version)
    prefix = os.path.commonpath([programs.bindir, share, library])

    def copied(path):
        made = server_folder / "postgresql" / os.path.relpath(path, prefix)
        made.parent.mkdir(parents=True, exist_ok=True)
        return made

    # A program looks for its other folders beside where it lies itself.
    bindir = copied(programs.bindir)
    bindir.mkdir()
    for name in PROGRAMS:
        shutil.copy(programs.program(name), bindir / name)
    copied(library).symlink_to(library)
    copied(share).mkdir()
    for path in share.iterdir():
        if path.name == "extension":
            shutil.copytree(path, copied(share) / path.name)
        else:
            (copied(share) / path.name).symlink_to(path)
    files = copied(share) / "extension"
    extension.build(files, architectures=ARCHITECTURES, earlier={BEFORE: ITS_MIGRATION})
    before = "CREATE SCHEMA tensile;\n" + extension.migrations_sql(ITS_MIGRATION)
    (files / f"tensile_db--{BEFORE}.sql").write_text(before)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PG_CONFIG", str(bindir / "pg_config"))
        cluster = LocalCluster(server_folder / "with-extension", durable=False)
        cluster.start()
        yield cluster
        cluster.remove()


@pytest.fixture(scope="module")
def roles(server):
    with psycopg.connect(server.dsn(dbname="postgres"), autocommit=True) as connection:
        for role in ("alice", "bob", "carol"):
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))


@pytest.fixture
def make_site(server, roles, request):
    """Make an empty database, and a site of it."""

    def make(name):
        with psycopg.connect(server.dsn(dbname="postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return Site(admin=server.dsn(dbname=name))

    return make


@pytest.fixture
def site(make_site, request):
    """A database with the extension, and its users."""
    site = make_site(request.node.name[:60])
    site.execute(CREATE)
    give_usage(site)
    return site


def give_usage(site):
    for role in ("alice", "bob"):
        site.execute("SELECT tensile_grant_usage(%s)", role)
    site.execute("SELECT tensile_grant_usage('carol', admin => true)")


def snapshot(site):
    """Return all that there is of tensile_db; without what is another number or time in each database."""
    found = []
    for row in site.execute(SNAPSHOT):
        del row["oid"]
        if row["kind"] == "setting":
            del row["body"]
        if "dblink" not in row["name"] and "plpython3" not in row["name"]:
            found.append(row)
    return found + site.execute(DEFINITIONS)


def test_it_makes_what_an_install_makes(site, make_site):
    installed = make_site("installed")
    # Where CREATE EXTENSION puts it.
    installed.execute("CREATE EXTENSION dblink SCHEMA public")
    install(installed.admin, architectures=ARCHITECTURES)
    assert snapshot(site) == snapshot(installed)
    members = site.value(
        "SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_extension'::regclass"
        " AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'tensile_db') AND deptype = 'e'"
    )
    assert members > 150


def test_jobs_are_submitted_and_kept_from_others(site):
    site.execute("CREATE TABLE t (a real, y real); INSERT INTO t VALUES (1, 2); GRANT SELECT ON t TO alice")
    job = site.value("SELECT tensile_submit('mlp', 't')", role="alice")
    assert site.job(job)["owner"] == "alice"
    assert site.execute("SELECT FROM tensile.jobs", role="bob") == []
    found = site.execute("SELECT * FROM tensile_doctor() WHERE status <> 'ok'", role="alice")
    assert [row["found"] for row in found] == ["none is running", f"{job} waits for a worker: none is alive"]


def test_a_dump_has_the_rows_and_they_are_restored(site, make_site, server):
    jobs = [add_job(site), add_job(site), add_job(site, state="queued", days_ago=None)]
    trial = add_job(site, search=jobs[0])
    model = add_model(site, name="m")
    site.execute(
        "INSERT INTO tensile.model_weights (model_id, name, part, dtype, shape, data)"
        " VALUES (%s, 'w', 0, 'float32', '{2}', sha256('w'))",
        model,
    )
    # No room for what is there already.
    site.execute("SELECT tensile_set_quota('alice', max_concurrent_jobs => 1)", role="carol")
    add_job(site, "bob", state="queued", days_ago=None)
    site.execute("SELECT tensile_set_quota('bob', max_concurrent_jobs => 0)", role="carol")
    site.execute("INSERT INTO tensile.settings (name, value) VALUES ('loopback', 'port=1')")
    site.execute("REVOKE EXECUTE ON FUNCTION tensile.tensile_models() FROM tensile_user")
    dumped = subprocess.run(
        [server.programs.program("pg_dump"), "--dbname", site.admin], capture_output=True, check=True
    )
    restored = make_site("restored")
    psql = [
        server.programs.program("psql"),
        "--set",
        "ON_ERROR_STOP=1",
        "--quiet",
        "--dbname",
        restored.admin,
    ]
    subprocess.run(psql, input=dumped.stdout, capture_output=True, check=True)
    tables = [
        row["name"]
        for row in site.execute(
            "SELECT oid::regclass::text AS name FROM pg_class"
            " WHERE relnamespace = 'tensile'::regnamespace AND relkind = 'r'"
        )
    ]
    for table in tables:
        query = f"SELECT t::text AS row FROM {table} t ORDER BY 1"
        if table != "tensile.settings":
            assert restored.execute(query) == site.execute(query), table
    names = "SELECT name, value FROM tensile.settings ORDER BY 1"
    assert restored.execute(names) == site.execute(names)
    assert add_job(restored, "carol") == max(*jobs, trial) + 2
    assert add_model(restored, name="n") == model + 1
    assert restored.refusal("SELECT tensile.tensile_models()")[0] == "42501"


def test_an_earlier_version_is_updated(make_site, site):
    updated = make_site("updated")
    updated.execute("CREATE EXTENSION plpython3u; CREATE EXTENSION dblink")
    updated.execute(f"CREATE EXTENSION tensile_db VERSION '{BEFORE}'")
    updated.execute("ALTER EXTENSION tensile_db UPDATE")
    give_usage(updated)

    def in_order(rows):
        return sorted(map(str, rows))

    assert in_order(snapshot(updated)) == in_order(snapshot(site))
    configured = (
        "SELECT extversion, array_length(extconfig, 1) FROM pg_extension WHERE extname = 'tensile_db'"
    )
    assert updated.execute(configured) == site.execute(configured)


def test_dblink_may_be_kept_to_itself_before(make_site):
    site = make_site("links")
    site.execute(
        "CREATE SCHEMA links; CREATE EXTENSION dblink SCHEMA links;"
        " REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA links FROM PUBLIC"
    )
    site.execute(CREATE)
    assert site.value("SELECT tensile.can_be_reached()") is False
    found = "SELECT found FROM tensile_doctor() WHERE \"check\" = 'loopback'"
    assert site.value(found) == "the server reaches itself"


def test_dropped_it_leaves_nothing(site):
    site.execute("DROP EXTENSION tensile_db")
    left = "SELECT oid::regprocedure::text FROM pg_proc WHERE starts_with(proname, 'tensile')"
    assert site.execute(left) == []
    assert site.value("SELECT to_regnamespace('tensile')::text") is None
    site.execute(CREATE)
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0


def test_it_is_not_made_where_an_install_was(make_site):
    installed = make_site("installed before")
    install(installed.admin)
    state, message, hint = installed.refusal(CREATE, role="postgres")
    assert (state, message) == ("42P06", "the database has a schema tensile already, which is no extension's")
    assert "tensile-db install" in hint
    assert installed.value("SELECT count(*) FROM tensile.jobs") == 0


def test_an_install_tells_it_of_this_machine_alone(site):
    members = "SELECT count(*) FROM pg_depend WHERE deptype = 'e'"
    before = site.value(members)
    install(site.admin, architectures=[("mlp", "mlp", "mlp")], loopback="port=5432")
    assert site.execute("SELECT name FROM tensile.architectures") == [{"name": "mlp"}]
    assert site.value("SELECT value FROM tensile.settings WHERE name = 'loopback'") == "port=5432"
    assert site.value(members) == before
    site.execute("UPDATE tensile.settings SET value = 'older' WHERE name = 'contents'")
    with pytest.raises(InvalidRequest, match="as an extension, of another version") as refusal:
        install(site.admin, architectures=ARCHITECTURES)
    assert "ALTER EXTENSION tensile_db UPDATE" in refusal.value.hint
    assert site.execute("SELECT name FROM tensile.architectures") == [{"name": "mlp"}]


def test_files_name_the_version_and_nothing_of_this_machine(tmp_path):
    paths = extension.build(tmp_path / "new", architectures=ARCHITECTURES)
    assert [path.name for path in paths] == ["tensile_db.control", f"tensile_db--{package_version()}.sql"]
    assert all(str(Path.cwd()) not in path.read_text() for path in paths)
