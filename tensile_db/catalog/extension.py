"""Builds a PostgreSQL extension of the same migrations and scripts that an install runs.

    tensile_db.control             what the server is to know
    tensile_db--0.1.0.sql          CREATE EXTENSION
    tensile_db--0.0.9--0.1.0.sql   ALTER EXTENSION ... UPDATE, from each earlier version

The server runs these files itself, so they lie in its file system, which `install` does without.  Whoever
has a database dumped gets one line of SQL for all that the extension made, and the rows of its tables.

Source: PostgreSQL's documentation, "Packaging Related Objects into an Extension".
"""

from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path

from alembic import command
from psycopg import sql

from tensile_db.catalog import udf_bundle
from tensile_db.catalog.install import (
    OLDEST_SERVER_VERSION,
    as_rows,
    digest_of,
    migrations_config,
    package_version,
    script,
    scripts,
)
from tensile_db.errors import NotInstalled

NAME = "tensile_db"

#: Released versions before this one, each with the newest migration that it had.
EARLIER: Mapping[str, str] = {}

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

#: Workers' transactions are short.  A session that waits for its training is not waited for.
_LOCK = """
SET LOCAL lock_timeout = '60s';
DO $$
BEGIN
    -- All at once, so that no worker has one and waits for another.
    EXECUTE (SELECT 'LOCK TABLE ' || pg_catalog.string_agg(c.oid::regclass::text, ', ' ORDER BY c.oid)
                    || ' IN ACCESS EXCLUSIVE MODE'
             FROM pg_catalog.pg_class c
             WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind IN ('r', 'p'));
END
$$;
"""

#: The script itself makes the rows of two tables, and some of a third; requests for a row are answered at
#: once or never, and one that is restored would be answered again.
_KEEP_ROWS = """
DO $$
DECLARE
    kept record;
BEGIN
    FOR kept IN
        SELECT c.oid, c.relname AS name FROM pg_catalog.pg_class c
        WHERE c.relnamespace = 'tensile'::regnamespace AND c.relkind IN ('r', 'S')
        AND c.relname <> ALL (ARRAY['migrations', 'architectures', 'serving_requests'])
    LOOP
        PERFORM pg_catalog.pg_extension_config_dump(kept.oid,
            CASE kept.name WHEN 'settings' THEN $filter$WHERE name NOT IN ({made_here})$filter$ ELSE '' END);
    END LOOP;
END
$$;
"""


def build(
    folder: Path,
    *,
    architectures: Iterable[tuple[str, str, str]],
    earlier: Mapping[str, str] = EARLIER,
) -> list[Path]:
    """Write the files of this version's extension into a folder, made if need be; return their paths.

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
        f"{NAME}.control": _CONTROL.format(version=version),
        f"{NAME}--{version}.sql": "\n".join(_creation(version, architectures)),
    }
    for before, revision in earlier.items():
        texts[f"{NAME}--{before}--{version}.sql"] = "\n".join(_update(version, revision, architectures))
    paths = []
    for name, text in texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _creation(version: str, architectures: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield _begin(f"CREATE EXTENSION {NAME} CASCADE")
    yield _NOT_THERE_YET
    yield migrations_sql("head")
    yield from _the_rest(version, architectures)


def _update(version: str, revision: str, architectures: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield what makes this version of one whose newest migration has this revision."""
    yield _begin(f"ALTER EXTENSION {NAME} UPDATE")
    yield _LOCK
    yield migrations_sql(f"{revision}:head")
    yield from _the_rest(version, architectures)


def _the_rest(version: str, architectures: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield what is the same whether or not there was an earlier version."""
    texts = [script(path) for path in scripts()]
    yield from texts
    made_here = {"version": version, "contents": digest_of(texts), "udf_digest": udf_bundle.digest()}
    settings = _values(made_here.items())
    yield (
        f"INSERT INTO tensile.settings (name, value) VALUES {settings}\n"
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = pg_catalog.now()\n"
        "WHERE settings.value <> excluded.value;"
    )
    yield "DELETE FROM tensile.architectures;"
    rows = as_rows(architectures)
    if rows:
        yield f"INSERT INTO tensile.architectures (name, kind, resolves_to) VALUES {_values(rows)};"
    yield _KEEP_ROWS.format(made_here=", ".join(_literal(name) for name in made_here))


def _begin(statement: str) -> str:
    return _BEGIN.format(
        statement=statement, oldest=OLDEST_SERVER_VERSION, oldest_major=OLDEST_SERVER_VERSION // 10000
    )


def migrations_sql(revisions: str) -> str:
    """Return migrations as statements; revisions: up to which one from nothing, or FROM:TO."""
    config = migrations_config()
    written = StringIO()
    config.output_buffer = written
    command.upgrade(config, revisions, sql=True)
    return written.getvalue()


def _values(rows: Iterable[Iterable[str]]) -> str:
    return ",\n    ".join(f"({', '.join(map(_literal, row))})" for row in rows)


def _literal(text: str) -> str:
    return sql.Literal(text).as_string()
