"""Installs tensile_db into a database: migrations, then the functions, views and rights of `sql/`.

Runs on any client of the server: all that goes into the database travels over the connection, and nothing
is needed in the server's file system but PostgreSQL with plpython3u and dblink.  One transaction: a failed
install leaves the database as it was.  Installing again brings everything to this version.
"""

import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tensile_db.catalog import udf_bundle
from tensile_db.catalog.engine import ENCODING
from tensile_db.catalog.exclusive import lock_catalog, wait_for_turn
from tensile_db.catalog.owners import require_owners
from tensile_db.catalog.workers import CATALOG_KINDS
from tensile_db.errors import Forbidden, InvalidRequest, NotInstalled
from tensile_db.scheduler.policies import POLICIES

OLDEST_SERVER_VERSION = 140000

#: The name that tensile_db has where it is an extension (`extension.py`).
EXTENSION = "tensile_db"

#: Behind VALUES of tensile.settings: what stays as it was keeps its time.
IF_ANOTHER = (
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = now()"
    " WHERE settings.value <> excluded.value"
)

#: How long the tables may be in use by others, who have short transactions as a rule.
_PATIENCE_S = 60.0

_SCRIPTS = ("roles.sql", "dropped.sql", "functions/*.sql", "views/*.sql", "unqualified.sql", "rights.sql")


class Architecture(NamedTuple):
    """A row of tensile.architectures."""

    name: str
    #: alias, timm, mlp or plugin.
    kind: str
    #: The name that its maker knows.
    resolves_to: str


def install(
    dsn: str,
    *,
    architectures: Iterable[tuple[str, str, str]] | None = None,
    loopback: str | None = None,
    patience_s: float = _PATIENCE_S,
    if_changed: bool = False,
) -> None:
    """Install or upgrade the database that `dsn` names, as a superuser of its server.

    architectures: (name, kind, resolves_to) of all that can be trained; None leaves them as they are.
    loopback: a libpq connection string by which the server reaches itself as a superuser, where neither the
    server's own user nor the installing role may connect over the local socket; kept for admins only.
    patience_s: how long to look for a moment in which nobody uses the catalog, whose users then wait.
    if_changed: nothing is done where the last install was of the same; else what somebody changed is mended.
    Where tensile_db is an extension (`extension.py`) of this version, architectures and loopback are all
    that is written.
    Raises NotInstalled, Forbidden, InvalidRequest, CatalogInUse; psycopg.Error where the server cannot be
    reached.
    """
    if loopback is not None:
        _require_conninfo(loopback)
    # Looked at, and then written.
    architectures = None if architectures is None else list(architectures)
    paths = scripts()
    texts = [script(path) for path in paths]
    contents = digest_of(texts)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn, client_encoding=ENCODING),
        poolclass=NullPool,
    )
    with engine.begin() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        # Scripts qualify what they name; this keeps what they do not out of anybody's reach.
        driver.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        driver.execute("SET LOCAL client_min_messages = warning")
        wait_for_turn(driver, patience_s=patience_s)
        if if_changed and _is_installed(driver, contents, architectures, loopback):
            return
        _require(driver)
        if _is_extension(driver):
            require_owners(driver)
            _add_to_extension(driver, contents, architectures, loopback)
            return
        _require_migrations(driver)
        require_owners(driver)
        lock_catalog(driver, patience_s=patience_s)
        _prepare(driver)
        _migrate(connection)
        for path, text in zip(paths, texts, strict=True):
            if path.name == "unqualified.sql":
                # What somebody has made under the name of one of ours would stay theirs.
                require_owners(driver)
            driver.execute(text.encode())
        if architectures is not None:
            replace_architectures(driver, architectures)
        _remember(driver, "version", package_version())
        _remember(driver, "contents", contents)
        _remember(driver, "udf_digest", udf_bundle.digest())
        if loopback is not None:
            _remember(driver, "loopback", loopback)


def replace_architectures(
    connection: psycopg.Connection, architectures: Iterable[tuple[str, str, str]]
) -> None:
    """Make tensile.architectures hold exactly these (name, kind, resolves_to).

    The caller owns the transaction; readers see the old or the new ones, never none.
    """
    rows = as_rows(architectures)
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM tensile.architectures WHERE name <> ALL (%s)", [[row.name for row in rows]]
        )
        cursor.executemany(
            "INSERT INTO tensile.architectures (name, kind, resolves_to) VALUES (%s, %s, %s)"
            " ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, resolves_to = excluded.resolves_to"
            " WHERE (architectures.kind, architectures.resolves_to) IS DISTINCT FROM"
            " (excluded.kind, excluded.resolves_to)",
            rows,
        )


def as_rows(architectures: Iterable[tuple[str, str, str]]) -> list[Architecture]:
    """Return the rows of tensile.architectures; architectures: (name, kind, resolves_to)."""
    return sorted(
        Architecture(name, CATALOG_KINDS.get(kind, kind), resolves_to)
        for name, kind, resolves_to in architectures
    )


def digest_of(texts: Iterable[str]) -> str:
    """Return a digest of what this version makes of a database, but for what is given to `install`.

    texts: of the scripts, as they are run.
    """
    digest = hashlib.sha256(package_version().encode())
    for text in texts:
        digest.update(text.encode())
    for path in sorted(find_folder("migrations").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def package_version() -> str:
    """Return the version of this tensile_db, or 'unpackaged' in a bare checkout."""
    try:
        return version("tensile_db")
    except PackageNotFoundError:
        return "unpackaged"


def newest_migration() -> str:
    """Return the revision of the catalog that this version makes; later ones compare as greater."""
    head = ScriptDirectory(str(find_folder("migrations"))).get_current_head()
    assert head is not None, "there are no migrations"
    return head


def scripts() -> list[Path]:
    """Return the SQL scripts in the order in which they are run; what concerns every object comes last."""
    folder = find_folder("sql")
    return [path for pattern in _SCRIPTS for path in sorted(folder.glob(pattern))]


def script(path: Path) -> str:
    """Return an SQL script as it is run: with what it takes from the package's Python filled in."""
    text = udf_bundle.fill_in(path.read_text(encoding="utf-8"))
    return text.replace("@policies@", ", ".join(f"'{name}'" for name in sorted(POLICIES)))


def find_folder(name: str) -> Path:
    """Return `sql` or `migrations`: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / name, package / name):
        if (folder / "versions").is_dir() or (folder / "functions").is_dir():
            return folder
    raise NotInstalled(
        f"this tensile_db came without its folder {name}", hint="Install it again, or run from a checkout."
    )


def _require_conninfo(text: str) -> None:
    """Refuse what is no connection string, which every session would be told of, and of what is in it."""
    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError as error:
        raise InvalidRequest(
            f"the loopback's connection string cannot be read: {str(error).strip()}",
            hint="Values with spaces stand in single quotes: password='two words'.",
        ) from None


def _require(connection: psycopg.Connection) -> None:
    """Refuse a server that cannot carry tensile_db, before anything is changed."""
    if connection.info.server_version < OLDEST_SERVER_VERSION:
        raise InvalidRequest(
            f"PostgreSQL {connection.info.parameter_status('server_version')} is too old",
            hint=f"tensile_db needs PostgreSQL {OLDEST_SERVER_VERSION // 10000} or newer.",
        )
    row = connection.execute("SELECT rolname, rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    assert row is not None
    if not row[1]:
        raise Forbidden(
            f'the role "{row[0]}" cannot install tensile_db: plpython3u is an untrusted language',
            hint="Connect as a superuser of the server, e.g. postgres.",
        )
    available = connection.execute(
        "SELECT array_agg(name) FROM pg_available_extensions WHERE name IN ('plpython3u', 'dblink')"
    ).fetchone()
    assert available is not None
    major = connection.info.server_version // 10000
    for extension, package in (
        ("plpython3u", f"postgresql-plpython3-{major}"),
        ("dblink", f"postgresql-contrib or postgresql-{major}"),
    ):
        if extension not in (available[0] or []):
            raise NotInstalled(
                f"the server has no extension {extension}",
                hint=f"On the server's machine, with Debian or Ubuntu: apt-get install {package}.",
            )


def _require_migrations(connection: psycopg.Connection) -> None:
    """Refuse a catalog of which nothing says how far it has been migrated."""
    tables = "SELECT pg_catalog.to_regclass('tensile.jobs'), pg_catalog.to_regclass('tensile.migrations')"
    jobs, migrations = connection.execute(tables).fetchone() or (None, None)
    if jobs is None:
        return
    if migrations is None or connection.execute("SELECT FROM tensile.migrations").fetchone() is None:
        only = "" if migrations is None else " --data-only"
        raise InvalidRequest(
            "the database has tables of tensile_db, and no row of tensile.migrations says of which version:"
            " it was restored without that",
            hint=f"Bring it along: pg_dump{only} -t tensile.migrations SOURCE | psql TARGET; or, to begin"
            " anew without jobs and models: DROP SCHEMA tensile CASCADE.",
        )


def _is_extension(connection: psycopg.Connection) -> bool:
    """Tell whether the database's tensile_db came by CREATE EXTENSION (`extension.py`)."""
    found = connection.execute("SELECT FROM pg_catalog.pg_extension WHERE extname = %s", [EXTENSION])
    return found.fetchone() is not None


def _add_to_extension(
    connection: psycopg.Connection,
    contents: str,
    architectures: Sequence[tuple[str, str, str]] | None,
    loopback: str | None,
) -> None:
    """Write what concerns this machine.  What a version consists of only ALTER EXTENSION changes.

    But for what the server's Python makes of it, which may be another one by now.
    """
    settings = _settings(connection)
    there, here = settings.get("version"), package_version()
    if there != here:
        raise InvalidRequest(
            f"the database's extension tensile_db is of version {there}, and this tensile_db of {here}",
            hint="Where this one is newer, build its files on the server's machine, `tensile-db extension`,"
            " and then: ALTER EXTENSION tensile_db UPDATE.",
        )
    if settings.get("contents") != contents:
        raise InvalidRequest(
            f"the database's extension tensile_db was built of another state of version {here}",
            hint="Extensions are updated from one version to another only.  To begin anew, without jobs and"
            " models: `tensile-db extension` on the server's machine, DROP EXTENSION, CREATE EXTENSION.",
        )
    if not _is_compiled(connection):
        connection.execute(script(find_folder("sql") / "functions/udf_code.sql").encode())
    if architectures is not None:
        replace_architectures(connection, architectures)
    if loopback is not None:
        _remember(connection, "loopback", loopback)


def _prepare(connection: psycopg.Connection) -> None:
    connection.execute("CREATE SCHEMA IF NOT EXISTS tensile")
    connection.execute("CREATE EXTENSION IF NOT EXISTS plpython3u")
    # Where it is installed already it stays where it is: functions look for its schema.
    connection.execute("CREATE EXTENSION IF NOT EXISTS dblink WITH SCHEMA tensile")


def migrations_config() -> Config:
    """Return Alembic's configuration.

    Whoever runs migrations adds the connection to its attributes, whoever writes them out an output_buffer.
    """
    config = Config()
    config.set_main_option("script_location", str(find_folder("migrations")).replace("%", "%%"))
    return config


def _migrate(connection: object) -> None:
    config = migrations_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise InvalidRequest(
            f"the database's catalog is not one that this tensile_db knows: {error}",
            hint="It was installed by a newer tensile_db: use that one, or a newer one.",
        ) from error


def _is_installed(
    connection: psycopg.Connection,
    contents: str,
    architectures: Sequence[tuple[str, str, str]] | None,
    loopback: str | None,
) -> bool:
    """Tell whether the last install was of these contents, and of what else is given."""
    known = connection.execute("SELECT pg_catalog.to_regclass('tensile.settings') IS NOT NULL").fetchone()
    if known != (True,):
        return False
    settings = _settings(connection)
    if settings.get("contents") != contents or loopback not in (None, settings.get("loopback")):
        return False
    if not _is_compiled(connection):
        return False
    if architectures is None:
        return True
    rows = connection.execute("SELECT name, kind, resolves_to FROM tensile.architectures").fetchall()
    return sorted(rows) == as_rows(architectures)


def _is_compiled(connection: psycopg.Connection) -> bool:
    """Tell whether what was compiled is for the Python that the server has now."""
    return connection.execute("SELECT tensile.is_udf_compiled()").fetchone() == (True,)


def _settings(connection: psycopg.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, value FROM tensile.settings").fetchall())


def _remember(connection: psycopg.Connection, name: str, value: str) -> None:
    connection.execute(
        sql.SQL("INSERT INTO tensile.settings (name, value) VALUES (%s, %s) " + IF_ANOTHER), [name, value]
    )
