"""Workers keep the names of owners in the catalog as they are, for a restore in another cluster."""

import logging

import psycopg
import pytest

from tensile_db.worker.renamed import RenamedRoles
from tests.patience import wait_until

ADD_MODEL = (
    "INSERT INTO tensile.models (name, version, owned_by, owner, architecture, task, features,"
    " parameter_nbytes) SELECT 'm', 1, oid, rolname, 'mlp', 'regression', '{}', 4 FROM pg_roles"
    " WHERE rolname = 'eve'"
)


@pytest.fixture
def rename(database):
    """Give the owner of the database's only model another name."""
    database.execute("CREATE ROLE eve LOGIN")
    database.execute(ADD_MODEL)
    names = ["eve"]

    def rename(name):
        database.execute(f"ALTER ROLE {names[-1]} RENAME TO {name}")
        names.append(name)

    yield rename
    database.execute(f"DROP ROLE {names[-1]}")


@pytest.fixture
def seconds():
    return [0.0]


@pytest.fixture
def roles(engine, seconds):
    return RenamedRoles(engine, clock=lambda: seconds[0])


def owner(database):
    (row,) = database.execute("SELECT owner FROM tensile.models")
    return row["owner"]


def test_at_its_start_and_every_ten_minutes_names_are_brought_up_to_date(database, rename, roles, seconds):
    rename("eva")
    roles.look()
    assert owner(database) == "eva"
    rename("evita")
    seconds[0] = 599
    roles.look()
    assert owner(database) == "eva"
    seconds[0] = 601
    roles.look()
    assert owner(database) == "evita"


def test_rows_are_looked_at_only_where_a_role_has_another_name(database, rename, roles, seconds):
    roles.look()
    database.execute("UPDATE tensile.models SET owner = 'somebody'")
    database.execute("CREATE ROLE evelyn")
    try:
        seconds[0] = 601
        roles.look()
        assert owner(database) == "somebody"
        database.execute("ALTER ROLE evelyn RENAME TO evelina")
        seconds[0] = 1202
        roles.look()
        assert owner(database) == "eve"
    finally:
        database.execute("DROP ROLE evelina")


def test_a_row_that_somebody_has_locked_is_looked_at_again(database, rename, roles, seconds):
    rename("eva")
    with psycopg.connect(database.admin) as other:
        other.execute("SELECT FROM tensile.models FOR UPDATE")
        roles.look()
    assert owner(database) == "eve"
    seconds[0] = 601
    roles.look()
    assert owner(database) == "eva"


def test_a_role_that_is_dropped_is_told_from_the_next_of_its_name(database, rename, roles, seconds):
    roles.look()
    database.execute("DROP ROLE eve; CREATE ROLE eve")
    seconds[0] = 601
    roles.look()
    assert owner(database) == "eve (dropped)"


def test_a_catalog_that_does_not_answer_is_asked_again(database, rename, roles, seconds, caplog):
    refresh = "ALTER FUNCTION tensile.{} RENAME TO {}"
    database.execute(refresh.format("refresh_names()", "away"))
    with caplog.at_level(logging.WARNING):
        roles.look()
    assert "names of roles could not be looked at" in caplog.text
    database.execute(refresh.format("away()", "refresh_names"))
    rename("eva")
    seconds[0] = 601
    roles.look()
    assert owner(database) == "eva"


def test_a_worker_looks_as_soon_as_it_is_there(database, rename, start_worker):
    rename("eva")
    start_worker()
    database.wait_for_worker()
    wait_until(lambda: owner(database) == "eva")
