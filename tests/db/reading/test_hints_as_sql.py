"""Hints that hold a column's name as SQL hold SQL that works, whatever the name."""

import re

import psycopg
import pytest

from tensile_db.data.snapshot import read
from tensile_db.errors import BadData, InvalidRequest

HOSTILE = "it's, ä \"t\\"
#: As SQL has it.
QUOTED = '"it\'s, ä ""t\\"'


def refused(source, connection, tmp_path, error, features, target="y"):
    with pytest.raises(error) as refusal:
        read(connection, source("t", features=features, target=target), tmp_path / "rows")
    return refusal.value.hint


def make_table(site, type_name, value):
    site.execute(
        f"CREATE TABLE t ({QUOTED} {type_name}, y int); GRANT SELECT ON t TO alice;"
        f"INSERT INTO t VALUES ({value}, 1), ({value}, 2)"
    )


def test_a_time_is_a_number_as_the_hint_says(source, connection, tmp_path, site):
    make_table(site, "interval", "'2 s'")
    hint = refused(source, connection, tmp_path, InvalidRequest, ["y"], target=HOSTILE)
    found = re.fullmatch(r"Cast it in a view, as (.*) for a class or (.*) for a number, and .*", hint)
    assert site.value(f"SELECT {found[2]} FROM t LIMIT 1") == 2
    assert site.value(f"SELECT {found[1]} FROM t LIMIT 1") == "00:00:02"


@pytest.mark.parametrize(("type_name", "value"), [("numeric", "1e400"), ("numeric[]", "'{1e400}'")])
def test_a_number_out_of_range_is_found_as_the_hint_says(
    source, connection, tmp_path, site, type_name, value
):
    make_table(site, type_name, value)
    hint = refused(source, connection, tmp_path, BadData, [HOSTILE])
    selected = re.search(r"SELECT (.*) from the source", hint)[1]
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        site.execute(f"SELECT {selected} FROM t")


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_one_of_several_columns_is_named_as_the_hint_says(source, connection, tmp_path, site, conforming):
    make_table(site, "bytea", "'x'")
    site.execute("ALTER TABLE t ADD COLUMN other bytea")
    hint = refused(source, connection, tmp_path, InvalidRequest, None)
    call = "SELECT tensile_submit('resnet50', 't', target => 'y'{})"
    assert site.refusal(call.format("")) == (
        "22023",
        f"public.t has several columns to learn from: {HOSTILE}, other",
        hint,
    )
    named = re.fullmatch(r"Name one: (features => .*)\.", hint)[1]
    with site.connect("alice") as alice:
        alice.execute(f"SET standard_conforming_strings = {conforming}")
        job = alice.execute(call.format(f", {named}")).fetchone()
    assert site.value("SELECT features FROM tensile.jobs WHERE id = %s", *job.values()) == [HOSTILE]


@pytest.mark.parametrize(
    ("column", "value", "cast"), [("a numeric", "1e400", "float8"), ("a numeric[]", "'{1e400}'", "float8[]")]
)
def test_a_numeric_that_double_precision_has_no_room_for_is_told_without_its_digits(
    source, connection, tmp_path, site, column, value, cast
):
    site.execute(
        f"CREATE TABLE far ({column}, y int); INSERT INTO far VALUES ({value}, 1);"
        "GRANT SELECT ON far TO alice"
    )
    with pytest.raises(BadData) as refusal:
        read(connection, source("far", features=["a"], target="y"), tmp_path / "rows")
    assert refusal.value.message == (
        "the server could not send the rows: a number is out of range for type double precision"
    )
    assert refusal.value.hint == (
        f'As such numeric columns are read: SELECT "a"::{cast} from the source to see where it fails,'
        " and leave such rows out by a view."
    )
