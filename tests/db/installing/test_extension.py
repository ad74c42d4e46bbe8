"""As an extension: the same as an install, dumped with its rows, updated and dropped."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import psycopg
import pytest
from psycopg import sql

from tensile_db.catalog import extension
from tensile_db.catalog.install import install, package_version
from tensile_db.errors import Forbidden, InvalidRequest
from tensile_db.local import LocalCluster
from tensile_db.local_postgres import find_postgres, shared_folders
from tests.db.installing.changed_code import CHANGED
from tests.db.installing.snapshot import SNAPSHOT
from tests.fixtures.db import ARCHITECTURES, Site
from tests.jobs.inserted_rows import add_job, add_model

CREATE = "CREATE EXTENSION tensile_db CASCADE"
#: An earlier version: fewer migrations, and nothing of sql/.
BEFORE, ITS_MIGRATION = "0.0.9", "0027"
CREATE_BEFORE = f"CREATE EXTENSION tensile_db VERSION '{BEFORE}' CASCADE"
UPDATE = "ALTER EXTENSION tensile_db UPDATE"
#: Foreign keys and triggers are there before the rows.
WITHOUT_CHECKS = {"PGOPTIONS": "-c session_replication_role=replica"}
IS_AT_HOME = "SELECT tensile.is_at_home()"
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
ORDER BY 1, 2, 4
"""
PROGRAMS = ("initdb", "pg_config", "pg_ctl", "pg_dump", "pg_restore", "postgres", "psql")


@pytest.fixture(scope="module")
def server(server_folder):
    """A server whose PostgreSQL has the extension: a copy, for nothing is put into the machine's own."""
    programs = find_postgres()
    share, library = shared_folders(programs.bindir, programs.version)
    prefix = os.path.commonpath([programs.bindir, share, library])

    def place_of(path):
        made = server_folder / "postgresql" / os.path.relpath(path, prefix)
        made.parent.mkdir(parents=True, exist_ok=True)
        return made

    if not (programs.bindir / "pg_config").exists():
        pytest.skip("this PostgreSQL has no pg_config, by which its copy is found")
    # A program looks for its other folders beside where it lies itself.
    bindir = place_of(programs.bindir)
    bindir.mkdir()
    for name in PROGRAMS:
        shutil.copy(programs.program(name), bindir / name)
    place_of(library).symlink_to(library)
    place_of(share).mkdir()
    for path in share.iterdir():
        if path.name == "extension":
            shutil.copytree(path, place_of(share) / path.name)
        else:
            (place_of(share) / path.name).symlink_to(path)
    files = place_of(share) / "extension"
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
        for role in ("alice", "bob", "carol", "dave", "mallory"):
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))


@pytest.fixture
def make_site(server, roles):
    """Make an empty database, and a site of it."""
    with ExitStack() as at_the_end:

        def make(name):
            with psycopg.connect(server.dsn(dbname="postgres"), autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            return at_the_end.enter_context(closing(Site(admin=server.dsn(dbname=name))))

        yield make


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


def test_all_that_it_makes_is_its_own(site):
    not_its_own = (
        "SELECT {name}::text AS name FROM {table} o WHERE {those} AND NOT EXISTS (SELECT FROM pg_depend"
        " WHERE classid = '{table}'::regclass AND objid = o.oid AND deptype = 'e')"
    )
    relations = "relnamespace = 'tensile'::regnamespace AND relkind IN ('r', 'v', 'S')"
    for table, name, those in (
        ("pg_namespace", "nspname", "nspname = 'tensile'"),
        ("pg_class", "o.oid::regclass", relations),
        ("pg_proc", "o.oid::regprocedure", "starts_with(proname, 'tensile')"),
    ):
        assert site.execute(not_its_own.format(table=table, name=name, those=those)) == []


def test_jobs_are_submitted_and_kept_from_others(site):
    site.execute("CREATE TABLE t (a real, y real); INSERT INTO t VALUES (1, 2); GRANT SELECT ON t TO alice")
    job = site.value("SELECT tensile_submit('mlp', 't')", role="alice")
    assert site.job(job)["owner"] == "alice"
    assert site.execute("SELECT id FROM tensile.jobs", role="bob") == []
    found = site.execute("SELECT * FROM tensile_doctor() WHERE status <> 'ok'", role="alice")
    assert [row["found"] for row in found] == ["none is running", f"{job} waits for a worker: none is alive"]


def restored_copy(
    site, name, make_site, server, dump=(), restore=("psql", "-q", "-v", "ON_ERROR_STOP=1"), **env
):
    """Dump a site and restore it in a database of this name."""
    folder = server.folder.parent / f"dump {name}"
    command = [server.programs.program("pg_dump"), "--file", str(folder), *dump, "--dbname", site.admin]
    subprocess.run(command, capture_output=True, check=True)
    restored = make_site(name)
    program, *options = restore
    command = [server.programs.program(program), *options, "--dbname", restored.admin]
    command += ["--file", str(folder)] if program == "psql" else [str(folder)]
    subprocess.run(command, capture_output=True, check=True, env=os.environ | env)
    return restored


@pytest.mark.parametrize(
    ("dump", "restore", "options"),
    [
        ((), ("psql", "-q", "-v", "ON_ERROR_STOP=1"), {}),
        (("--inserts",), ("psql", "-q", "-v", "ON_ERROR_STOP=1"), WITHOUT_CHECKS),
        (("--format", "custom"), ("pg_restore", "--exit-on-error", "--jobs", "2"), WITHOUT_CHECKS),
    ],
    ids=["plain", "inserts", "by two at once"],
)
def test_a_dump_has_the_rows_and_they_are_restored(site, make_site, server, dump, restore, options, request):
    search = add_job(site, kind="search")
    add_job(site, search=search)
    # It now lies behind its trial.
    site.execute("UPDATE tensile.jobs SET loss = 1 WHERE id = %s", search)
    add_job(site, state="queued", days_ago=None)
    model = add_model(site, name="m")
    site.execute(
        "INSERT INTO tensile.model_weights (model_id, name, part, dtype, shape, data)"
        " VALUES (%s, 'w', 0, 'float32', '{2}', sha256('w'))",
        model,
    )
    # Quotas below what is there already: a restore is not to be refused by them.
    site.execute("SELECT tensile_set_quota('alice', max_concurrent_jobs => 1)", role="carol")
    last = add_job(site, "bob", state="queued", days_ago=None)
    site.execute("SELECT tensile_set_quota('bob', max_concurrent_jobs => 0)", role="carol")
    site.execute("REVOKE EXECUTE ON FUNCTION tensile.tensile_models() FROM tensile_user")
    name = f"restored {request.node.callspec.id}"
    restored = restored_copy(site, name, make_site, server, dump, restore, **options)
    tables = site.execute(
        "SELECT oid::regclass::text AS name FROM pg_class"
        " WHERE relnamespace = 'tensile'::regnamespace AND relkind = 'r'"
        " AND relname NOT IN ('homes', 'settings')"
    )
    for table in tables:
        query = f"SELECT t::text AS row FROM {table['name']} t ORDER BY 1"
        assert restored.execute(query) == site.execute(query), table
    assert add_job(restored, "carol") == last + 1
    assert add_model(restored, name="n") == model + 1
    assert restored.refusal("SELECT tensile.tensile_models()")[0] == "42501"
    # It has its own home, and that of the rows.
    assert [row["is_at_home"] for row in site.execute(IS_AT_HOME) + restored.execute(IS_AT_HOME)] == [
        True,
        False,
    ]


def test_an_earlier_version_is_updated(make_site, site):
    updated = make_site("updated")
    updated.execute(CREATE_BEFORE)
    updated.execute(UPDATE)
    give_usage(updated)
    assert snapshot(updated) == snapshot(site)
    configured = (
        "SELECT extversion, array_length(extconfig, 1) FROM pg_extension WHERE extname = 'tensile_db'"
    )
    assert updated.execute(configured) == site.execute(configured)


def test_what_an_administrator_gave_to_others_is_in_dumps_of_what_was_updated(make_site, server):
    site = make_site("given")
    site.execute(CREATE_BEFORE)
    site.execute("GRANT SELECT ON tensile.workers TO dave; GRANT SELECT (id) ON tensile.jobs TO dave")
    site.execute(UPDATE)
    given = (
        "SELECT has_table_privilege('dave', 'tensile.workers', 'SELECT') AS of_workers,"
        " has_column_privilege('dave', 'tensile.jobs', 'id', 'SELECT') AS of_ids,"
        " has_table_privilege('dave', 'tensile.jobs', 'SELECT') AS of_jobs"
    )
    assert site.execute(given) == [{"of_workers": True, "of_ids": True, "of_jobs": False}]
    restored = restored_copy(site, "given again", make_site, server)
    assert restored.execute(given) == site.execute(given)


@pytest.mark.parametrize("by", ["update", "install"])
def test_what_another_role_made_there_does_not_act_as_a_superuser(make_site, by):
    site = make_site(f"trigger and {by}")
    site.execute(CREATE_BEFORE if by == "update" else CREATE)
    site.execute("CREATE SCHEMA mallory AUTHORIZATION mallory; GRANT USAGE ON SCHEMA tensile TO mallory")
    site.execute("GRANT TRIGGER ON tensile.settings TO mallory")
    site.execute(
        "CREATE FUNCTION mallory.f() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN ALTER ROLE mallory SUPERUSER; RETURN NEW; END'",
        role="mallory",
    )
    site.execute(
        "CREATE TRIGGER z BEFORE INSERT OR UPDATE ON tensile.settings"
        " FOR EACH ROW EXECUTE FUNCTION mallory.f()",
        role="mallory",
    )
    if by == "update":
        state, message, hint = site.refusal(UPDATE, role="postgres")
        assert (state, hint) == (
            "42501",
            "If tensile_db has nothing to do with it: DROP TRIGGER z ON tensile.settings.",
        )
    else:
        with pytest.raises(Forbidden) as refusal:
            install(site.admin, loopback="port=1")
        message = refusal.value.message
    assert message.startswith(
        'the function of the trigger z on tensile.settings belongs to the role "mallory"'
    )
    assert site.value("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'") is False


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


def test_a_dump_leaves_out_what_the_script_itself_makes(site):
    left_out = (
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind = 'r'"
        " AND c.oid <> ALL ((SELECT extconfig FROM pg_extension WHERE extname = 'tensile_db')::oid[])"
        " ORDER BY 1"
    )
    assert [row["relname"] for row in site.execute(left_out)] == [
        "architectures",
        "migrations",
        "serving_requests",
        "settings",
    ]


def test_an_update_keeps_nobody_waiting_and_waits_for_nobody(make_site):
    site = make_site("in use")
    site.execute(CREATE_BEFORE)
    with site.connect("postgres", autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        other.execute("LOCK TABLE tensile.quotas IN ROW EXCLUSIVE MODE")
        updating = pool.submit(site.execute, UPDATE)
        # Two attempts, and more: taken as they come, its locks would meet these the other way round.
        other.execute("SELECT pg_sleep(0.3)")
        assert not updating.done()
        other.execute("LOCK TABLE tensile.jobs IN ROW EXCLUSIVE MODE")
        other.commit()
        updating.result()
    assert site.value("SELECT extversion FROM pg_extension WHERE extname = 'tensile_db'") == package_version()


def test_dropped_it_leaves_nothing(site):
    named = (
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " AND position('dblink' IN relname) = 0"
        " UNION ALL SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        " AND position('dblink' IN proname) = 0"
        " UNION ALL SELECT oid::regtype::text FROM pg_type WHERE typnamespace = 'public'::regnamespace"
        " AND position('dblink' IN typname) = 0"
    )
    assert site.execute(named) != []
    site.execute("DROP EXTENSION tensile_db")
    assert site.execute(named) == []
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


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("version", f"is of version other, and this tensile_db of {package_version()}", "ALTER EXTENSION"),
        ("contents", f"built of another state of version {package_version()}", "DROP EXTENSION"),
    ],
)
def test_an_install_of_something_else_leaves_it_alone(site, setting, message, hint):
    site.execute("UPDATE tensile.settings SET value = 'other' WHERE name = %s", setting)
    before = site.execute(SNAPSHOT)
    with pytest.raises(InvalidRequest, match=message) as refusal:
        install(site.admin, architectures=[])
    assert hint in refusal.value.hint
    assert site.execute(SNAPSHOT) == before


def test_an_install_compiles_for_another_python(site):
    site.execute(CHANGED.format(byte=0))
    assert site.value("SELECT tensile.is_udf_compiled()") is False
    install(site.admin)
    assert site.value("SELECT tensile.is_udf_compiled()") is True
    # It is the extension's as before.
    site.execute("DROP EXTENSION tensile_db")
    assert site.value("SELECT to_regnamespace('tensile')") is None
