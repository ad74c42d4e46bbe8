"""Rows read from a real server, as their reader, under one snapshot."""

import errno
from dataclasses import replace

import numpy as np
import psycopg
import pytest

from tensile_db.data.columns import Variable
from tensile_db.data.server_errors import is_connection_loss
from tensile_db.data.snapshot import read
from tensile_db.data.stored_rows import key_texts, open_rows
from tensile_db.data.submitter import make_rows_function
from tensile_db.errors import (
    AmbiguousTarget,
    BadData,
    Forbidden,
    InvalidRequest,
    NullInData,
    QuotaExceeded,
    RaggedArray,
    UndefinedColumn,
    UndefinedSource,
)


def test_numbers_arrive_as_arrays_in_the_primary_keys_order(source, connection, tmp_path):
    found, rows = read(connection, source("numbers"), tmp_path / "rows")
    a, b, c, ok, label, key = rows.values
    assert [column.name for column in found.columns] == ["a", "b", "c", "ok", "label", "id"]
    assert a.tolist() == [i / 2 for i in range(1, 11)]
    assert (a.dtype, b.dtype, c.dtype) == (np.float32, np.int16, np.float64)
    assert b.tolist() == [-i for i in range(1, 11)]
    assert c.tolist() == [i / 4 for i in range(1, 11)]
    assert ok.tolist() == [0, 1] * 5
    assert isinstance(label, Variable)
    assert label[2].decode() == "zwölf"
    assert key_texts(key, range(2, 4)) == ["3", "4"]
    assert rows.count == 10


def test_arrays_of_many_blocks_arrive_whole_with_their_places_as_keys(source, connection, tmp_path):
    seen = []
    found, rows = read(connection, source("arrays"), tmp_path / "rows", progress=seen.append)
    pixels, label, key = rows.values
    assert found.key.name == "ctid"
    assert pixels.shape == (9000, 3)
    assert pixels[-1].tolist() == [9000, 9001, 9002]
    assert label.sum() == 4500
    assert key_texts(key, range(2)) == ["(0,1)", "(0,2)"]
    assert seen == [4096, 8192, 9000]


def test_hostile_names_bytes_of_varying_length_and_enums_are_read(source, connection, tmp_path):
    _, rows = read(connection, source('"odd ""table"'), tmp_path / "rows")
    assert [rows.values[0][row] for row in range(2)] == [b"x", b"xx"]
    assert [rows.values[1][row] for row in range(2)] == [b"sad", b"glad"]


def test_partitioned_tables_and_views_are_sources(source, connection, tmp_path):
    features = ["x"]
    asked = source("parts", features=features)
    assert read(connection, asked, tmp_path / "a")[1].values[0].tolist() == list(range(10))
    halves, rows = read(connection, source("halves"), tmp_path / "b")
    assert halves.key is None
    assert rows.values[0].tolist() == [0, 0.5, 1, 1.5, 2, 2.5]


def test_row_level_security_shows_the_submitter_what_is_the_submitters(source, connection, tmp_path):
    _, rows = read(connection, source("guarded"), tmp_path / "rows")
    assert rows.values[-1].tolist() == [1, 2, 3]


def test_a_table_that_the_submitter_may_not_read_is_refused(source, connection, tmp_path):
    with pytest.raises(Forbidden, match="permission denied"):
        read(connection, source("secret"), tmp_path / "rows")


def test_a_submitter_whom_the_worker_may_not_become_is_refused(source, connection, tmp_path):
    with pytest.raises(Forbidden, match='may not read as role "mallory"') as refusal:
        read(connection, source("numbers", role="mallory"), tmp_path / "rows")
    assert "tensile_grant_usage('mallory')" in refusal.value.hint


def test_a_submitter_who_has_become_a_superuser_is_refused(source, connection, tmp_path, site):
    asked = source("numbers")
    site.execute("ALTER ROLE alice SUPERUSER")
    try:
        with pytest.raises(Forbidden, match='"alice" is a superuser'):
            read(connection, asked, tmp_path / "rows")
    finally:
        site.execute("ALTER ROLE alice NOSUPERUSER")
    assert read(connection, asked, tmp_path / "rows")[1].count == 10


def test_a_dropped_table_is_refused(source, connection, tmp_path, site):
    asked = replace(source("secret"), known_as="public.secret")
    site.execute("DROP TABLE secret")
    with pytest.raises(UndefinedSource, match=r"^public\.secret \(OID \d+\) does not exist any more"):
        read(connection, asked, tmp_path / "rows")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("UPDATE numbers SET b = NULL WHERE id = 4", NullInData, 'column "b" of row id=4 holds a NULL'),
        (
            "UPDATE numbers SET label = NULL WHERE id = 7",
            NullInData,
            'column "label" of row id=7 holds a NULL',
        ),
    ],
)
def test_a_null_names_its_column_and_row(source, connection, tmp_path, site, change, error, message):
    asked = source("numbers")
    site.execute(change)
    with pytest.raises(error, match=message):
        read(connection, asked, tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []


def test_a_ragged_array_names_its_row(source, connection, tmp_path, site):
    asked = source("arrays")
    site.execute("UPDATE arrays SET pixels = ARRAY[1, 2] WHERE pixels[1] = 3")
    with pytest.raises(RaggedArray, match=r"of row ctid=\(\d+,\d+\) holds an array that has 2 elements"):
        read(connection, asked, tmp_path / "rows")


@pytest.mark.parametrize(
    ("body", "said", "hint"),
    [
        *(
            (f"RAISE 'boom' USING ERRCODE = '{state}'", "boom", "SELECT from the source")
            for state in ("XX999", "XX000", "A1B2C", "53100", "42P01", "42883")
        ),
        ("RAISE 'boom' USING HINT = 'Ask carol.'", "boom", "Ask carol."),
        ("RETURN 1 / 0", "division by zero", "SELECT from the source"),
        ("RAISE 'boom' USING ERRCODE = '40P01'", "boom", "Other transactions"),
        ("PERFORM a FROM public.parts AS source", 'column "a" does not exist', "SELECT from the"),
        ("PERFORM own()", "function own\\(\\) does not exist", "Sources are read with"),
        ("PERFORM y FROM parts", 'relation "parts" does not exist', "Sources are read with"),
        ("RETURN 'pa'||'rts'::regclass::text", 'relation "rts" does not exist', "Sources are read with"),
        (
            "PERFORM current_setting('app.t')",
            'unrecognized configuration parameter "app.t"',
            "SELECT from the",
        ),
        (
            "RETURN nextval('public.numbered')",
            "cannot execute nextval\\(\\) in a read-only transaction",
            "Sources are read in a read-only transaction",
        ),
        # As a foreign table's server that is away.
        ("RAISE 'gone' USING ERRCODE = '08006'", "gone", "SELECT from the source"),
    ],
)
def test_whatever_a_view_raises_is_the_views_error(source, connection, tmp_path, site, body, said, hint):
    site.execute(
        "CREATE SEQUENCE numbered; GRANT USAGE ON SEQUENCE numbered TO alice;"
        "CREATE FUNCTION public.own() RETURNS int LANGUAGE sql AS 'SELECT 1';"
        f"CREATE FUNCTION raising() RETURNS int LANGUAGE plpgsql AS $$ BEGIN {body}; END $$;"
        "CREATE VIEW broken AS SELECT raising() AS x, y FROM parts; GRANT SELECT ON broken TO alice"
    )
    with pytest.raises(BadData, match=f"^the server could not send the rows: {said}") as refusal:
        read(connection, source("broken"), tmp_path / "rows")
    assert refusal.value.hint.startswith(hint)
    assert list(tmp_path.iterdir()) == []


def test_a_lost_connection_is_no_error_of_the_sources(source, connection, tmp_path, site):
    site.execute(
        "CREATE FUNCTION ending() RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS"
        " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid(), 10000); RETURN 1; END $$;"
        "CREATE VIEW broken AS SELECT ending() AS x, y FROM parts; GRANT SELECT ON broken TO alice"
    )
    with pytest.raises(psycopg.errors.AdminShutdown) as lost:
        read(connection, source("broken"), tmp_path / "rows")
    assert is_connection_loss(lost.value)


@pytest.mark.parametrize("kind", ["date", "time", "timestamp", "timestamptz", "interval"])
def test_times_are_features_in_seconds_and_no_targets(source, connection, tmp_path, site, kind):
    value = "2 s" if kind == "interval" else "1970-01-02 00:00:02+00"
    site.execute(f"CREATE TABLE other AS SELECT 1::real AS a, '{value}'::{kind} AS t")
    site.execute("GRANT SELECT ON other TO alice")
    _, rows = read(connection, source("other", features=["t"], target="a"), tmp_path / "rows")
    seconds = {"date": 86400, "time": 2, "interval": 2}.get(kind, 86402)
    assert rows.values[0].tolist() == [seconds]
    with pytest.raises(InvalidRequest, match="which cannot be a target") as refusal:
        read(connection, source("other", features=["a"], target="t"), tmp_path / "rows")
    what = '"t"::text for a class or extract(epoch FROM "t") for a number'
    assert refusal.value.hint == f"Cast it in a view, as {what}, and name the view."


@pytest.mark.parametrize("kind", ["uuid", "daterange"])
def test_a_column_of_another_type_is_told_what_a_view_could_do(source, connection, tmp_path, site, kind):
    site.execute(f"CREATE TABLE other (a real, t {kind}); GRANT SELECT ON other TO alice")
    with pytest.raises(InvalidRequest, match="which cannot be a feature") as refusal:
        read(connection, source("other", features=["t"], target="a"), tmp_path / "rows")
    assert refusal.value.hint == "Turn it into numbers in a view, and name the view."
    with pytest.raises(InvalidRequest, match="which cannot be a target") as refusal:
        read(connection, source("other", features=["a"], target="t"), tmp_path / "rows")
    assert refusal.value.hint == 'Cast it in a view, as "t"::text, and name the view.'


def test_texts_are_features_where_they_are_named(source, connection, tmp_path):
    found, rows = read(connection, source("numbers", features=["label"], target="ok"), tmp_path / "rows")
    assert [column.name for column in found.features] == ["label"]
    assert rows.values[0][2].decode() == "zwölf"


def test_an_empty_table_gives_no_rows(source, connection, tmp_path, site):
    asked = source("arrays")
    site.execute("DELETE FROM arrays")
    assert read(connection, asked, tmp_path / "rows")[1].count == 0


def test_the_digest_tells_other_rows_and_a_folder_is_read_again_as_it_was(source, connection, tmp_path, site):
    _, first = read(connection, source("numbers"), tmp_path / "a")
    _, again = read(connection, source("numbers"), tmp_path / "b")
    site.execute("UPDATE numbers SET a = a + 1 WHERE id = 3")
    _, other = read(connection, source("numbers"), tmp_path / "c")
    assert first.digest == again.digest != other.digest
    kept = open_rows(tmp_path / "a")
    assert kept.digest == first.digest
    assert kept.values[0].tolist() == first.values[0].tolist()
    assert open_rows(tmp_path / "nothing") is None


def test_rows_beyond_the_caches_limit_are_refused_and_removed(source, connection, tmp_path):
    with pytest.raises(QuotaExceeded, match=r"more than the 1\.0 KiB"):
        read(connection, source("arrays"), tmp_path / "rows", max_nbytes=1024)
    assert list(tmp_path.iterdir()) == []


def test_the_connection_is_its_own_again_afterwards(source, connection, tmp_path):
    read(connection, source("numbers"), tmp_path / "rows")
    assert connection.execute("SELECT current_user::text").fetchone() == ("puppet_login",)
    with pytest.raises(Forbidden):
        read(connection, source("secret"), tmp_path / "rows")
    assert connection.execute("SELECT current_user::text").fetchone() == ("puppet_login",)


def test_domains_several_dimensions_and_composite_keys_are_read(source, connection, tmp_path, site):
    site.execute(
        """
        CREATE DOMAIN pixel_rows AS real[] CHECK (array_ndims(VALUE) = 2);
        CREATE DOMAIN grade AS smallint;
        CREATE TABLE planes (
            site text, number int, pixels pixel_rows, label grade, PRIMARY KEY (site, number));
        INSERT INTO planes VALUES
            ('b', 1, '{{1,2,3},{4,5,6}}', 1), ('a', 2, '[0:1][5:7]={{6,5,4},{3,2,1}}', 2);
        GRANT SELECT ON planes TO alice"""
    )
    found, rows = read(connection, source("planes"), tmp_path / "rows")
    assert found.key.name == "(site, number)"
    assert rows.values[0].tolist() == [[[6, 5, 4], [3, 2, 1]], [[1, 2, 3], [4, 5, 6]]]
    assert rows.values[1].tolist() == [2, 1]
    assert key_texts(rows.values[2], range(2)) == ["(a,2)", "(b,1)"]


def test_arrays_of_domains_are_read_as_those_of_the_type_beneath(source, connection, tmp_path, site):
    site.execute(
        """
        CREATE DOMAIN ratio AS numeric CHECK (VALUE >= 0);
        CREATE DOMAIN share AS ratio CHECK (VALUE <= 1);
        CREATE DOMAIN shares AS share[];
        CREATE DOMAIN pair AS int[];
        CREATE TABLE mixes (s share[], d shares, p pair[], label int);
        INSERT INTO mixes VALUES ('{0.25,1}', '{{0.5},{0}}', NULL, 1), ('{0,0.75}', '{{1},{1}}', NULL, 2);
        GRANT SELECT ON mixes TO alice"""
    )
    _, rows = read(connection, source("mixes", features=["s"]), tmp_path / "s")
    assert rows.values[0].tolist() == [[0.25, 1.0], [0.0, 0.75]]
    _, rows = read(connection, source("mixes", features=["d"]), tmp_path / "d")
    assert rows.values[0].tolist() == [[[0.5], [0.0]], [[1.0], [1.0]]]
    with pytest.raises(InvalidRequest, match=r'column "p" has the type public\.pair\[\]'):
        read(connection, source("mixes", features=["p"]), tmp_path / "p")


def test_the_right_to_some_columns_is_enough_for_those(source, connection, tmp_path, site):
    site.execute(
        """
        CREATE TABLE partly (id int PRIMARY KEY, x real, hidden real, y int);
        INSERT INTO partly SELECT i, i, i, i FROM generate_series(1, 3) i;
        GRANT SELECT (x, y) ON partly TO alice"""
    )
    found, rows = read(connection, source("partly"), tmp_path / "rows")
    assert ([column.name for column in found.features], found.key) == (["x"], None)
    assert rows.values[0].tolist() == [1, 2, 3]
    with pytest.raises(Forbidden, match='permission denied for column "hidden"'):
        read(connection, source("partly", features=["x", "hidden"]), tmp_path / "again")


def test_rows_come_in_the_same_order_after_the_table_was_rewritten(source, connection, tmp_path, site):
    _, before = read(connection, source("numbers"), tmp_path / "before")
    site.execute("UPDATE numbers SET a = a WHERE id < 5")
    site.execute("VACUUM FULL numbers")
    _, after = read(connection, source("numbers"), tmp_path / "after")
    assert before.digest == after.digest


def test_a_table_that_is_swapped_for_another_while_it_is_opened_is_refused(
    source, connection, tmp_path, site, monkeypatch
):
    site.execute("CREATE TABLE other AS SELECT * FROM numbers; GRANT SELECT ON other TO alice")
    asked = source("numbers")

    def swap_first(connection, select):
        site.execute("ALTER TABLE numbers RENAME TO former; ALTER TABLE other RENAME TO numbers")
        make_rows_function(connection, select)

    monkeypatch.setattr("tensile_db.data.snapshot.make_rows_function", swap_first)
    with pytest.raises(UndefinedSource, match="was renamed or replaced while it was being read"):
        read(connection, asked, tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("column", ["b", "label", "id"])
@pytest.mark.parametrize("change", ['RENAME "{}" TO other', 'DROP "{}"'])
def test_a_column_that_goes_while_the_table_is_opened_is_named(
    source, connection, tmp_path, site, monkeypatch, column, change
):
    def change_first(connection, select):
        site.execute(f"ALTER TABLE numbers {change.format(column)}")
        make_rows_function(connection, select)

    monkeypatch.setattr("tensile_db.data.snapshot.make_rows_function", change_first)
    with pytest.raises(UndefinedColumn) as refusal:
        read(connection, source("numbers"), tmp_path / "rows")
    assert refusal.value.message == f'numbers has no column "{column}" any more'
    assert refusal.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_to_be_full(source, connection, tmp_path, monkeypatch):
    def full(writer, values):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tensile_db.data.stored_rows.RowsWriter.append", full)
    with pytest.raises(QuotaExceeded, match="no room for the rows: No space left on device"):
        read(connection, source("numbers"), tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []


def test_one_row_is_enough_to_be_read(source, connection, tmp_path, site):
    site.execute("DELETE FROM numbers WHERE id <> 6")
    _, rows = read(connection, source("numbers"), tmp_path / "rows")
    assert (rows.count, rows.values[0].tolist()) == (1, [3.0])


@pytest.mark.parametrize(
    ("columns", "options", "error", "message"),
    [
        ("a real, b real", {}, UndefinedColumn, "is named label, target, y or class"),
        ("a real, label int, y int", {}, AmbiguousTarget, "could be the target: label, y"),
        ("a real[], b bytea, y int", {}, InvalidRequest, 'could be the features: "a", "b"'),
        ("t text, y int", {}, UndefinedColumn, "no column could be a feature"),
        ("a real, y int", {"target": "z"}, UndefinedColumn, 'column "z" does not exist'),
        ("a real, y jsonb", {}, InvalidRequest, 'column "y" has the type jsonb'),
        ("a real, y real", {"task": "classification"}, InvalidRequest, "has fractions"),
        ("a real, y text", {"task": "regression"}, InvalidRequest, "holds no numbers"),
        ("a real[], b real, y int", {"features": ["a", "b"]}, InvalidRequest, "together with other features"),
    ],
)
def test_columns_that_cannot_be_used_are_refused(
    source, connection, tmp_path, site, columns, options, error, message
):
    site.execute(f"CREATE TABLE unclear ({columns}); GRANT SELECT ON unclear TO alice")
    with pytest.raises(error, match=message) as refusal:
        read(connection, source("unclear", **options), tmp_path / "rows")
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("columns", "options", "task"),
    [
        ("a real, y int", {}, "classification"),
        ("a real, y int", {"task": "regression"}, "regression"),
        ("a real, y boolean", {}, "classification"),
        ("a real, y varchar(9)", {}, "classification"),
        ("a real, y numeric", {}, "regression"),
        ("a real, y float8", {}, "regression"),
    ],
)
def test_the_targets_type_decides_the_task(source, connection, tmp_path, site, columns, options, task):
    site.execute(f"CREATE TABLE plain ({columns}); GRANT SELECT ON plain TO alice")
    assert read(connection, source("plain", **options), tmp_path / "rows")[0].task == task
