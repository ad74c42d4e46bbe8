"""Builds a PostgreSQL extension of the same migrations and scripts that an install runs.

    tensile_db.control             what the server is to know
    tensile_db--0.1.0.sql          CREATE EXTENSION
    tensile_db--0.0.9--0.1.0.sql   ALTER EXTENSION ... UPDATE, from each earlier version

The server reads these files itself, so they lie in its file system, which `install` does without.  A dump has
one line for all that the extension made, and the rows of its tables.

Source: PostgreSQL's documentation, "Packaging Related Objects into an Extension".
"""

from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path

from alembic import command
from psycopg import sql

from tensile_db.catalog import udf_bundle
from tensile_db.catalog.install import (
    EXTENSION,
    IF_ANOTHER,
    OLDEST_SERVER_VERSION,
    as_rows,
    digest_of,
    migrations_config,
    package_version,
    script,
    scripts,
)
from tensile_db.catalog.owners import WHOSE_IT_IS
from tensile_db.errors import NotInstalled

#: Version -> its newest migration, of all released before this one; a release adds the one before it.
EARLIER_VERSIONS: Mapping[str, str] = {}

_CONTROL = """\
# Built by `tensile-db extension`.
comment = 'deep learning in the database, many trainings on one GPU'
default_version = '{version}'
requires = 'plpython3u, dblink'
encoding = 'UTF8'
relocatable = false
"""

_BEGIN = r"""\echo Use "{statement}" to load this file. \quit
-- Built by `tensile-db extension` of migrations/ and sql/.

-- Scripts qualify what they name; this keeps what they do not out of anybody's reach.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$
BEGIN
    IF pg_catalog.current_setting('server_version_num')::integer < {oldest} THEN
        RAISE feature_not_supported USING
            MESSAGE = 'PostgreSQL ' || pg_catalog.current_setting('server_version') || ' is too old',
            HINT = 'tensile_db needs PostgreSQL {oldest_major} or newer.';
    END IF;
END
$$;
"""

#: An extension's script may replace nothing that is not the extension's (CVE-2022-2625).
_NOT_THERE_YET = """
DO $$
BEGIN
    IF pg_catalog.to_regnamespace('tensile') IS NOT NULL THEN
        RAISE duplicate_schema USING
            MESSAGE = 'the database has a schema tensile already, which is no extension''s',
            HINT = 'Where `tensile-db install` made it, that brings it to new versions, too. To begin anew,'
                ' without jobs and models: DROP SCHEMA tensile CASCADE.';
    END IF;
END
$$;

CREATE SCHEMA tensile;
"""

#: As `exclusive.py` does, and for its reasons: all are taken at once or not at all, and none is waited for.
_LOCK = """
DO $$
DECLARE
    until_at constant timestamptz := pg_catalog.clock_timestamp() + '60 s'::interval;
    before constant text := pg_catalog.current_setting('lock_timeout');
    tables text;
    view record;
BEGIN
    SELECT pg_catalog.string_agg(c.oid::regclass::text, ', ' ORDER BY c.oid) INTO STRICT tables
    FROM pg_catalog.pg_class c WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind IN ('r', 'p');
    LOOP
        BEGIN
            -- The least there is, for ALTER knows no NOWAIT.
            PERFORM pg_catalog.set_config('lock_timeout', '1ms', true);
            -- LOCK TABLE would lock all that a view reads, too: pg_authid, without which nobody can connect.
            FOR view IN
                SELECT c.oid::regclass AS name, pg_catalog.pg_get_userbyid(c.relowner) AS owner
                FROM pg_catalog.pg_class c WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind = 'v'
            LOOP
                EXECUTE pg_catalog.format('ALTER VIEW %s OWNER TO %I', view.name, view.owner);
            END LOOP;
            EXECUTE 'LOCK TABLE ' || tables || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            IF pg_catalog.clock_timestamp() > until_at THEN
                RAISE object_in_use USING
                    MESSAGE = 'the catalog of tensile_db was in use for a minute',
                    HINT = 'Update when those transactions have ended that are open for long:'
                        ' pg_stat_activity has them.';
            END IF;
        END;
        PERFORM pg_catalog.pg_sleep(0.05);
    END LOOP;
    PERFORM pg_catalog.set_config('lock_timeout', before, true);
END
$$;
"""

#: What another role made there acts as the superuser who updates.
_REQUIRE_OWNERS = """
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN {others} LOOP
        RAISE insufficient_privilege USING
            MESSAGE = pg_catalog.format('the %s belongs to the role "%s", which is no superuser and could'
                ' change what others call', found.object, found.rolname),
            HINT = pg_catalog.format('If tensile_db has nothing to do with it: %s.', found.undo);
    END LOOP;
END
$$;
"""

#: Not dumped: rows that the script itself makes; how the server reaches itself, which may be another one
#: after a restore; and requests for a row, which a restore would have answered again.
_KEEP_ROWS = """
DO $$
DECLARE
    kept oid;
BEGIN
    FOR kept IN
        SELECT c.oid FROM pg_catalog.pg_class c
        WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind IN ('r', 'S')
        AND c.relname <> ALL (ARRAY['migrations', 'architectures', 'settings', 'serving_requests'])
    LOOP
        PERFORM pg_catalog.pg_extension_config_dump(kept, '');
    END LOOP;
END
$$;
"""

#: PostgreSQL takes all rights on what a script gives any of for the script's own, which no dump has.  What an
#: administrator gave to others, or ALTER DEFAULT PRIVILEGES did, is to be in dumps.
_FORGET_RIGHTS_OF_OTHERS = """
SET LOCAL allow_system_table_mods = on;
UPDATE pg_catalog.pg_init_privs p SET initprivs = own.items
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_depend d
    ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
JOIN pg_catalog.pg_init_privs o ON o.classoid = d.classid AND o.objoid = d.objid
CROSS JOIN LATERAL (
    SELECT coalesce(pg_catalog.array_agg(i.item ORDER BY i.number), '{}') AS items
    FROM pg_catalog.unnest(o.initprivs) WITH ORDINALITY AS i (item, number)
    WHERE EXISTS (
        SELECT FROM pg_catalog.aclexplode(ARRAY[i.item]) a
        WHERE a.grantee = e.extowner OR a.grantee = ANY (
            ARRAY['tensile_user', 'tensile_admin', 'tensile_worker', 'tensile_priority']::regrole[]))) own
WHERE e.extname = 'tensile_db' AND own.items <> o.initprivs
AND (p.classoid, p.objoid, p.objsubid) = (o.classoid, o.objoid, o.objsubid);
"""


def build(
    folder: Path,
    *,
    architectures: Iterable[tuple[str, str, str]],
    earlier: Mapping[str, str] = EARLIER_VERSIONS,
) -> list[Path]:
    """Write the files of this version's extension into a folder, made if need be; return their paths.

    Files of the same names are overwritten.
    architectures: (name, kind, resolves_to) of all that can be trained.
    earlier: version -> its newest migration, of all that can be updated from.
    Raises NotInstalled where this is no installed version, and OSError.
    """
    version = package_version()
    if version == "unpackaged":
        raise NotInstalled(
            "an extension has a version, and this checkout has none", hint="Install it: pip install -e ."
        )
    architectures = list(architectures)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        f"{EXTENSION}.control": _CONTROL.format(version=version),
        f"{EXTENSION}--{version}.sql": "\n".join(_creation(version, architectures)),
    }
    for before, revision in earlier.items():
        texts[f"{EXTENSION}--{before}--{version}.sql"] = "\n".join(_update(version, revision, architectures))
    paths = []
    for name, text in texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        # The server runs as another user than who may write there.
        path.chmod(0o644)
        paths.append(path)
    return paths


def migrations_sql(revisions: str) -> str:
    """Return migrations as SQL statements, without BEGIN and COMMIT.

    revisions: `TO`, from an empty database, or `FROM:TO`.
    """
    config = migrations_config()
    written = StringIO()
    config.output_buffer = written
    command.upgrade(config, revisions, sql=True)
    return written.getvalue()


def _creation(version: str, architectures: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield _begin(f"CREATE EXTENSION {EXTENSION} CASCADE")
    yield _NOT_THERE_YET
    yield migrations_sql("head")
    yield from _functions_and_rows(version, architectures)


def _update(version: str, revision: str, architectures: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield what brings a version with this newest migration to the present one."""
    yield _begin(f"ALTER EXTENSION {EXTENSION} UPDATE")
    yield _LOCK
    yield _REQUIRE_OWNERS.format(others=WHOSE_IT_IS)
    yield migrations_sql(f"{revision}:head")
    yield from _functions_and_rows(version, architectures)


def _functions_and_rows(version: str, architectures: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield what both end with: functions, views and rights, and the rows that tell of this version."""
    texts = [script(path) for path in scripts()]
    yield from texts
    made_here = {"version": version, "contents": digest_of(texts), "udf_digest": udf_bundle.digest()}
    settings = _values(made_here.items())
    yield f"INSERT INTO tensile.settings (name, value) VALUES {settings} {IF_ANOTHER};"
    yield "DELETE FROM tensile.architectures;"
    rows = as_rows(architectures)
    if rows:
        yield f"INSERT INTO tensile.architectures (name, kind, resolves_to) VALUES {_values(rows)};"
    yield _KEEP_ROWS
    yield _FORGET_RIGHTS_OF_OTHERS


def _begin(statement: str) -> str:
    return _BEGIN.format(
        statement=statement, oldest=OLDEST_SERVER_VERSION, oldest_major=OLDEST_SERVER_VERSION // 10000
    )


def _values(rows: Iterable[Iterable[str]]) -> str:
    return ",\n    ".join(f"({', '.join(map(_literal, row))})" for row in rows)


def _literal(text: str) -> str:
    return sql.Literal(text).as_string()
