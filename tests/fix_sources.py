"""Tables of many kinds, read by a worker's code as its login reads them."""

from dataclasses import replace

import psycopg
import pytest

from tensile_db.data.snapshot import Reading

#: A partitioned table whose partitions hold few rows, a view, an enum, hostile names.
SETUP = """
CREATE TABLE numbers (id int PRIMARY KEY, a real NOT NULL, b smallint, c numeric, ok boolean, label text);
INSERT INTO numbers
    SELECT i, i / 2.0, -i, i / 4.0, mod(i, 2) = 0, CASE mod(i, 3) WHEN 0 THEN 'zwölf' ELSE 'x' END
    FROM generate_series(10, 1, -1) i;
CREATE TABLE arrays (pixels real[], label int);
INSERT INTO arrays SELECT ARRAY[i, i + 1, i + 2], mod(i, 2) FROM generate_series(1, 9000) i;
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE "odd ""table" ("im;age" bytea, "label" mood);
INSERT INTO "odd ""table" SELECT convert_to(repeat('x', i), 'UTF8'), (ARRAY['sad', 'glad'])[i]::mood
    FROM generate_series(1, 2) i;
CREATE TABLE parts (k int, x real, y int) PARTITION BY RANGE (k);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (5);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (5) TO (100);
INSERT INTO parts SELECT i, i, mod(i, 2) FROM generate_series(0, 9) i;
CREATE VIEW halves AS SELECT x / 2 AS x, y FROM parts WHERE k < 6;
CREATE TABLE guarded (id int PRIMARY KEY, x real, y int, owner name);
INSERT INTO guarded SELECT i, i, mod(i, 2), CASE WHEN i < 4 THEN 'alice' ELSE 'bob' END
    FROM generate_series(1, 9) i;
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON guarded FOR SELECT USING (owner = current_user);
CREATE TABLE secret (x real, y int);
GRANT SELECT ON numbers, arrays, "odd ""table", parts, halves, guarded TO alice;
"""


@pytest.fixture
def source(site):
    """Return a function that reads a table as alice, over the worker's login."""
    site.execute(SETUP)

    def reading(table, *, role="alice", **changes):
        relation = site.value("SELECT %s::text::regclass::oid::bigint AS oid", table)
        submitter = site.value("SELECT oid::bigint FROM pg_roles WHERE rolname = %s", role)
        asked = Reading(relation=relation, submitter=submitter, features=None, target=None, wants_target=True)
        return replace(asked, **changes)

    return reading


@pytest.fixture
def connection(site):
    with psycopg.connect(site.dsn("puppet_login"), autocommit=True) as opened:
        yield opened
