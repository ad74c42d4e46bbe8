"""Installing: complete, repeatable, all or nothing, and upgrading sessions that are open."""

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg.types.json import Jsonb
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tensile_db.catalog import install as installing
from tensile_db.catalog import schema, udf_bundle
from tensile_db.catalog.install import install
from tensile_db.errors import Forbidden, InvalidRequest
from tests.db.installing.snapshot import SNAPSHOT


def test_installing_again_changes_nothing(site):
    before = site.execute(SNAPSHOT)
    install(site.admin)
    assert site.execute(SNAPSHOT) == before


def test_the_migrations_make_the_tables_that_the_schema_declares(site):
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(site.admin), poolclass=NullPool
    )
    with engine.connect() as connection:
        options = {
            "include_schemas": True,
            "include_name": lambda name, kind, parents: kind != "schema" or name == "tensile",
            "version_table": "migrations",
            "version_table_schema": "tensile",
            "compare_server_default": True,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []


def test_the_newest_migration_can_be_undone_and_done_again(site, monkeypatch):
    def snapshot():
        # What is made anew has another OID.
        return [
            {name: value for name, value in row.items() if name != "oid"} for row in site.execute(SNAPSHOT)
        ]

    before = snapshot()
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(site.admin), poolclass=NullPool
    )
    with monkeypatch.context() as patched, engine.begin() as connection:
        patched.setattr(installing.command, "upgrade", lambda config, _: command.downgrade(config, "-1"))
        installing._migrate(connection)
    assert snapshot() != before
    install(site.admin)
    assert snapshot() == before


def test_models_and_jobs_of_packages_keep_the_networks_that_they_have(site, monkeypatch):
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(site.admin), poolclass=NullPool
    )
    with monkeypatch.context() as patched, engine.begin() as connection:
        patched.setattr(installing.command, "upgrade", lambda config, _: command.downgrade(config, "0022"))
        installing._migrate(connection)
    options = {"width": 7, "dropout": 0.5, "precision": "bfloat16"}
    for architecture in ("theirs", "mlp"):
        site.execute(
            "INSERT INTO tensile.models (name, version, owned_by, owner, architecture, task, features,"
            " parameter_nbytes, metrics) VALUES ('m', 1, %s::regrole, 'alice', %s, 'regression',"
            " jsonb_build_object('options', %s::jsonb), 1, '{}')",
            "alice" if architecture == "mlp" else "bob",
            architecture,
            Jsonb(options),
        )
        for _ in range(2):
            site.execute(
                "INSERT INTO tensile.jobs (submitted_by, owner, source_oid, source_name, architecture,"
                " options) VALUES ('alice'::regrole, 'alice', 'points'::regclass, 'points', %s, %s)",
                architecture,
                Jsonb(options),
            )
    site.execute(
        "INSERT INTO tensile.checkpoints (job_id, iteration, attempt, complete) VALUES (1, 1, 1, true)"
    )
    install(site.admin)
    kept = {"precision": "bfloat16"}
    models = site.execute("SELECT features -> 'options' AS options FROM tensile.models ORDER BY id")
    assert [row["options"] for row in models] == [kept, options]
    jobs = site.execute("SELECT options FROM tensile.jobs ORDER BY id")
    # One that has not begun gets what it asks for.
    assert [row["options"] for row in jobs] == [kept, options, options, options]


def test_every_table_column_view_and_function_has_a_comment(site):
    without = site.execute(
        "SELECT c.oid::regclass::text AS name FROM pg_class c WHERE c.relnamespace = 'tensile'::regnamespace"
        " AND c.relkind IN ('r', 'v') AND obj_description(c.oid, 'pg_class') IS NULL"
        " UNION ALL SELECT c.oid::regclass || '.' || a.attname FROM pg_class c JOIN pg_attribute a"
        " ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
        " WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind IN ('r', 'v')"
        " AND col_description(c.oid, a.attnum) IS NULL"
        " UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p"
        " WHERE p.pronamespace IN ('tensile'::regnamespace, 'public'::regnamespace)"
        " AND obj_description(p.oid, 'pg_proc') IS NULL"
        " AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = p.oid AND deptype = 'e')"
        " UNION ALL SELECT t.tgname FROM pg_trigger t WHERE NOT tgisinternal"
        " AND obj_description(t.oid, 'pg_trigger') IS NULL"
        " UNION ALL SELECT p.polname FROM pg_policy p WHERE obj_description(p.oid, 'pg_policy') IS NULL"
    )
    assert without == []


def test_every_function_has_its_own_search_path_or_a_body_bound_when_it_was_made(site):
    loose = site.execute(
        "SELECT proname FROM pg_proc p"
        " WHERE p.pronamespace IN ('tensile'::regnamespace, 'public'::regnamespace)"
        " AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = p.oid AND deptype = 'e')"
        " AND p.prosqlbody IS NULL AND coalesce(p.proconfig::text, '') !~ 'search_path=pg_catalog, pg_temp'"
    )
    # Resolves names in the caller's search_path, which is what it is for.
    assert loose == [{"proname": "find_source"}]


def test_nothing_is_open_to_everybody_but_what_all_views_ask(site):
    open_functions = site.execute(
        "SELECT p.oid::regprocedure::text AS name FROM pg_proc p,"
        " aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        " WHERE p.pronamespace IN ('tensile'::regnamespace, 'public'::regnamespace) AND a.grantee = 0"
    )
    open_relations = site.execute(
        "SELECT c.oid::regclass::text AS name FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE c.relnamespace = 'tensile'::regnamespace AND a.grantee = 0"
    )
    assert (open_functions, open_relations) == ([{"name": "tensile.is_at_home()"}], [])


def test_every_table_with_rows_of_users_has_row_level_security(site):
    without = site.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'tensile'::regnamespace AND relkind = 'r'"
        " AND NOT relrowsecurity"
    )
    assert without == [{"relname": "migrations"}]


def test_weights_are_stored_uncompressed_outside_their_rows(site):
    storage = site.execute(
        "SELECT attrelid::regclass::text AS name, attstorage FROM pg_attribute"
        " WHERE attname = 'data' AND attrelid IN ('tensile.model_weights'::regclass,"
        " 'tensile.checkpoint_tensors'::regclass) ORDER BY 1"
    )
    assert storage == [
        {"name": "tensile.checkpoint_tensors", "attstorage": "e"},
        {"name": "tensile.model_weights", "attstorage": "e"},
    ]


def test_a_role_that_is_no_superuser_cannot_install(site):
    with pytest.raises(Forbidden, match='"alice" cannot install') as refusal:
        install(site.dsn("alice"))
    assert refusal.value.hint == "Connect as a superuser of the server, e.g. postgres."


def test_a_failed_install_leaves_an_empty_database_empty(empty_database, monkeypatch, tmp_path):
    broken = tmp_path / "broken.sql"
    broken.write_text("SELECT 1/0")
    monkeypatch.setattr(installing, "scripts", lambda: [broken])
    with pytest.raises(psycopg.errors.DivisionByZero):
        install(empty_database)
    with psycopg.connect(empty_database) as connection:
        query = "SELECT to_regnamespace('tensile'), array_agg(extname::text) FROM pg_extension"
        assert connection.execute(query).fetchone() == (None, ["plpgsql"])


def test_a_catalog_of_a_newer_version_is_refused(site):
    site.execute("UPDATE tensile.migrations SET version_num = '9999'")
    with pytest.raises(InvalidRequest, match="9999") as refusal:
        install(site.admin)
    assert "newer" in refusal.value.hint


def test_a_restore_without_data_is_told_apart_and_the_hint_helps(site):
    version = site.value("SELECT version_num FROM tensile.migrations")
    site.execute("DELETE FROM tensile.migrations")
    with pytest.raises(InvalidRequest, match="restored without that") as refusal:
        install(site.admin)
    assert "pg_dump --data-only -t tensile.migrations" in refusal.value.hint
    found = "SELECT status FROM tensile_doctor() WHERE \"check\" = 'catalog'"
    assert site.value(found, role="alice") == "problem"
    site.execute("INSERT INTO tensile.migrations VALUES (%s)", version)
    install(site.admin)
    assert site.value(found, role="alice") == "ok"


def test_an_open_session_runs_the_functions_of_the_upgrade(site, monkeypatch):
    call = "SELECT * FROM tensile_train('vgg61', 'images_table')"
    with site.connect("alice") as connection:
        with pytest.raises(psycopg.Error, match="unknown architecture"):
            connection.execute(call)
        sources = udf_bundle.sources()
        upgraded = sources | {
            "tensile_db.errors": sources["tensile_db.errors"].replace("unknown {kind}", "what $$ is {kind}")
        }
        monkeypatch.setattr(udf_bundle, "sources", lambda: upgraded)
        monkeypatch.setattr(udf_bundle, "digest", lambda: "0123456789abcdef")
        install(site.admin)
        with pytest.raises(psycopg.Error, match=r"what \$\$ is architecture"):
            connection.execute(call)


def test_a_namesake_of_a_function_that_has_changed_is_dropped(site):
    site.execute("CREATE FUNCTION public.tensile_old() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; END")
    site.execute(
        "COMMENT ON FUNCTION public.tensile_old() IS 'Calls tensile.tensile_old: of an old version.'"
    )
    site.execute("CREATE FUNCTION public.tensile_mine() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; END")
    install(site.admin)
    left = "SELECT to_regproc('tensile_old')::text AS old, to_regproc('tensile_mine')::text AS mine"
    assert site.execute(left) == [{"old": None, "mine": "tensile_mine"}]


def test_installing_with_architectures_replaces_them(site):
    offered = [("mlp", "builtin", "mlp"), ("theirs", "package", "a:b"), ("vgg16", "alias", "vgg16_bn")]
    install(site.admin, architectures=offered)
    assert site.execute("SELECT name, kind, resolves_to FROM tensile.architectures ORDER BY name") == [
        {"name": "mlp", "kind": "mlp", "resolves_to": "mlp"},
        {"name": "theirs", "kind": "plugin", "resolves_to": "a:b"},
        {"name": "vgg16", "kind": "alias", "resolves_to": "vgg16_bn"},
    ]


def test_a_database_without_schema_public_keeps_the_qualified_names(site):
    site.execute("DROP SCHEMA public CASCADE")
    install(site.admin)
    assert site.value("SELECT count(*) FROM tensile.tensile_doctor()", role="alice") == 9


def test_what_uninstalls_leaves_nothing_in_the_way_of_another_install(site):
    # As docs/sql/administration.md has it.
    site.execute("DROP SCHEMA tensile CASCADE")
    site.execute(
        "DROP FUNCTION public.tensile_predict(text, record, integer),"
        " public.tensile_probabilities(text, record, integer)"
    )
    assert site.value("SELECT count(*) FROM pg_proc WHERE starts_with(proname, 'tensile')") == 0
    install(site.admin)
    assert site.value("SELECT count(*) FROM tensile_models()", role="alice") == 0


OLDER_FUNCTION = """
DROP FUNCTION public.tensile_models();
DROP FUNCTION tensile.tensile_models();
CREATE FUNCTION tensile.tensile_models() RETURNS TABLE (model text, version integer)
LANGUAGE sql BEGIN ATOMIC SELECT m.name, m.version FROM tensile.models m; END;
CREATE FUNCTION public.tensile_models() RETURNS TABLE (model text, version integer)
LANGUAGE sql BEGIN ATOMIC SELECT * FROM tensile.tensile_models(); END;
COMMENT ON FUNCTION public.tensile_models() IS 'Calls tensile.tensile_models: Lists the models.';
"""


def what_is_made(site):
    """All but what another function of the same name has otherwise."""
    return [{name: row[name] for name in ("kind", "name", "acl", "body")} for row in site.execute(SNAPSHOT)]


def test_a_function_that_returns_more_columns_takes_the_place_of_the_older_one(site):
    before = what_is_made(site)
    site.execute(OLDER_FUNCTION)
    install(site.admin)
    assert site.execute("SELECT pinned FROM tensile_models()", role="alice") == []
    assert what_is_made(site) == before


def test_other_functions_of_its_name_stay(site):
    site.execute("CREATE FUNCTION public.tensile_models(who text) RETURNS bigint LANGUAGE sql AS 'SELECT 1'")
    site.execute("CREATE PROCEDURE tensile.tensile_models(who text) LANGUAGE sql AS 'SELECT 1'")
    site.execute(OLDER_FUNCTION)
    install(site.admin)
    assert site.execute("SELECT pinned FROM tensile_models()", role="alice") == []
    assert site.value("SELECT public.tensile_models('alice')") == 1
    site.execute("CALL tensile.tensile_models('alice')")


def test_an_extension_that_has_taken_the_function_is_named(site):
    site.execute(OLDER_FUNCTION)
    site.execute("ALTER EXTENSION dblink ADD FUNCTION public.tensile_models()")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="extension dblink requires it"):
        install(site.admin)


@pytest.mark.parametrize("schema", ["public", "tensile"])
def test_a_view_of_the_columns_that_a_function_had_is_not_dropped(site, schema):
    site.execute(OLDER_FUNCTION)
    site.execute(f"CREATE VIEW mine AS SELECT version FROM {schema}.tensile_models()")
    before = site.execute(SNAPSHOT)
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as refusal:
        install(site.admin)
    told = refusal.value.diag
    assert told.message_primary == (
        f"{schema}.tensile_models() returns more columns now, and cannot be made anew:"
        f" view public.mine depends on function {schema}.tensile_models()"
    )
    assert told.message_hint == "Drop what depends on it, or take it out of the extension, and try again."
    assert site.execute(SNAPSHOT) == before
    site.execute("DROP VIEW mine")
    install(site.admin)
    assert site.execute("SELECT pinned FROM tensile_models()", role="alice") == []


def test_dblink_stays_in_the_schema_where_it_was(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA elsewhere")
        connection.execute("CREATE EXTENSION dblink SCHEMA elsewhere")
        install(empty_database)
        query = "SELECT status, found FROM tensile.tensile_doctor() WHERE \"check\" = 'loopback'"
        assert connection.execute(query).fetchone() == ("ok", "the server reaches itself")
