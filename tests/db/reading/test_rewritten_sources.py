"""Tables that others empty, fill and rewrite while a reader waits for their lock: no row is missing."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tensile_db.data import snapshot
from tensile_db.data.snapshot import read
from tensile_db.errors import BadData, InvalidRequest
from tests.patience import wait_until

#: Other tests' databases are on the same server.
_WAITING = """
    SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'relation'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS waits"""

#: (source, what its owner does in one transaction): rows whose x counts from 101 to 120 are there then.
_CHANGES = [
    ("lone", "TRUNCATE lone; INSERT INTO lone SELECT i, 100 + i, 1 FROM generate_series(1, 20) i"),
    (
        "parts",
        "TRUNCATE parts_1, parts_2; INSERT INTO parts SELECT i, 100 + i, i FROM generate_series(1, 20) i",
    ),
    (
        "parts",
        """
        DELETE FROM parts_2;
        DROP TABLE parts_1;
        CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (5);
        INSERT INTO parts SELECT i, 100 + i, i FROM generate_series(1, 20) i""",
    ),
    (
        "parts",
        """
        INSERT INTO other SELECT i, 100 + i, i FROM generate_series(1, 20) i;
        TRUNCATE parts_2;
        ALTER TABLE parts DETACH PARTITION parts_1;
        ALTER TABLE parts DETACH PARTITION parts_2;
        ALTER TABLE parts ATTACH PARTITION other FOR VALUES FROM (0) TO (100)""",
    ),
    ("halves", "TRUNCATE parts; INSERT INTO parts SELECT 1, 200 + 2 * i, i FROM generate_series(1, 20) i"),
]


@pytest.fixture
def owner(site):
    with psycopg.connect(site.admin) as connection:
        yield connection


@pytest.fixture
def read_while(connection, owner, site, tmp_path):
    """Return a function that reads while the owner's transaction with these statements is open."""

    def read_after(asked, statements):
        owner.execute(statements)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read, connection, asked, tmp_path / "rows")
            wait_until(lambda: site.value(_WAITING))
            owner.commit()
            return reading.result()

    return read_after


@pytest.mark.parametrize(("table", "statements"), _CHANGES)
def test_what_is_emptied_and_filled_again_is_read_whole(source, site, read_while, table, statements):
    site.execute(
        "CREATE TABLE lone AS SELECT * FROM parts; CREATE TABLE other (LIKE parts);"
        "GRANT SELECT ON lone TO alice"
    )
    _, rows = read_while(source(table, features=["x"]), statements)
    assert sorted(rows.values[0].tolist()) == list(range(101, 121))


def test_a_type_that_has_changed_meanwhile_is_read_as_it_is_now(source, read_while):
    asked = source("numbers", features=["b"], target="label")
    _, rows = read_while(asked, "ALTER TABLE numbers ALTER b TYPE int USING b * 100000")
    assert rows.values[0].tolist() == [-100000 * i for i in range(1, 11)]


def test_a_type_that_cannot_be_read_any_more_is_told(source, read_while):
    asked = source("numbers", features=["b"], target="label")
    with pytest.raises(InvalidRequest, match='column "b" has the type uuid, which cannot be a feature'):
        read_while(asked, "ALTER TABLE numbers ALTER b TYPE uuid USING gen_random_uuid()")


def test_what_is_always_rewritten_first_is_told(source, connection, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "was_rewritten", lambda connection: True)
    with pytest.raises(BadData, match="others had rewritten a table"):
        read(connection, source("numbers"), tmp_path / "rows")
    assert not (tmp_path / "rows").exists()
